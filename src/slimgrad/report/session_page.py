"""The page of one session: what `Report.to_html(path)` writes. The same numbers as the table in text."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from slimgrad.ledger import Coded, ratio
from slimgrad.report import charts, page
from slimgrad.report.table import nbytes, seconds, summary, times

if TYPE_CHECKING:
    from slimgrad.report import Report

N_MODULES = 40


def write(report: Report, path: Path) -> None:
    """Write the page."""
    steps = max(1, report.snapshot.n_steps)
    roles, modules = report.by_role(), report.by_module()
    largest = dict(list(modules.items())[:N_MODULES])
    kept = {(reason, detail): count for (_, _, reason, detail), count in report.snapshot.total.kept.items()}
    sections = [
        page.wide("By role", _table(roles, steps, "roles")),
        page.wide("By module", _bars(largest, steps), _table(largest, steps, "modules")),
        page.wide(
            "Kept as they are",
            charts.table(
                "per step", ("because", "saved by", "tensors", "bytes"),
                [(reason, detail or "-", f"{count.n / steps:,.1f}", nbytes(count.nbytes / steps))
                 for (reason, detail), count in sorted(kept.items(), key=lambda item: -item[1].nbytes)],
            ) if kept else "",
        ),
        page.wide("Notes", *(f"<p>{escape(note)}</p>" for note in report.notes)),
    ]  # fmt: skip
    page.write(path, "slimgrad: report of a session", sections, " ".join(summary(report)), report.to_dict())


def _bars(groups: dict[str, Coded], steps: int) -> str:
    rows = [
        charts.Bar(
            name or "(outside the modules)",
            coded.nbytes_in / steps,
            coded.nbytes_out / steps,
            f"{nbytes(coded.nbytes_in / steps)} → {nbytes(coded.nbytes_out / steps)}",
        )
        for name, coded in groups.items()
    ]
    return charts.bars("bytes per step", rows, "plain PyTorch", "slimgrad")


def _table(groups: dict[str, Coded], steps: int, name: str) -> str:
    headings = (name, "tensors", "original", "stored", "ratio", "encode", "decode", "codec")
    rows = [
        (
            group or "(outside the modules)",
            f"{coded.n / steps:,.1f}",
            nbytes(coded.nbytes_in / steps),
            nbytes(coded.nbytes_out / steps),
            times(ratio(coded.nbytes_in, coded.nbytes_out)),
            seconds(coded.encode_seconds / steps),
            seconds(coded.decode_seconds / steps),
            ", ".join(sorted(coded.codecs)),
        )
        for group, coded in groups.items()
    ]
    return charts.table("coded tensors, per step", headings, rows, name) if rows else ""
