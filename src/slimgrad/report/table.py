"""A report as text: one summary, then by role, then the largest modules, then what was kept and why.

Sizes and times are means per step. rich lays out the tables; without a terminal the text is plain. Where a terminal
is too narrow for all columns, those of times and errors are left out.
"""

from __future__ import annotations

import io
import shutil
import sys
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from slimgrad.ledger import Coded, Count, ratio

if TYPE_CHECKING:
    from slimgrad.report import Report

WIDTH, NARROW = 118, 105  # columns of the plain text, and below which there is no room for all of a table
N_MODULES = 10  # rows of the table of modules
N_KEPT = 8  # rows of the table of what was kept
NUMBERS, MORE_NUMBERS = ("tensors", "original", "stored", "ratio"), ("encode", "decode", "worst error")


def render(report: Report) -> str:
    """Return the report as plain text, no wider than the terminal if there is one."""
    width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(Group(*_body(report, width)))
    return "\n".join([*summary(report), *(line.rstrip() for line in capture.get().splitlines())])


def layout(report: Report, width: int) -> Group:
    """Return the report for a rich console of that width."""
    return Group(*(Text(line, style="bold") for line in summary(report)), *_body(report, width))


def summary(report: Report) -> list[str]:
    """Return the lines at the top: the three ratios and what they cost."""
    total, steps = report.snapshot.total, report.snapshot.n_steps
    if total.is_empty:
        return ["slimgrad: nothing was recorded" + _peak_words(report)]
    per_step = max(steps, 1)
    lines = [
        f"slimgrad: saved activations {nbytes(total.saved_in / per_step)} -> {nbytes(total.saved_out / per_step)} "
        f"({times(total.saved_ratio)}); coded tensors {times(total.coded_ratio)}{_peak_words(report)}"
    ]
    encode = sum(coded.encode_seconds for coded in total.coded.values()) / per_step
    decode = sum(coded.decode_seconds for coded in total.coded.values()) / per_step
    words = [f"per step, mean of {steps:,}" if steps > 1 else "in one step"]
    words += [f"encode {seconds(encode)}, decode {seconds(decode)}"]
    last = report.snapshot.last
    if abs(last.saved_ratio - total.saved_ratio) > 0.05 * total.saved_ratio:
        words.append(f"last step {times(last.saved_ratio)}")
    words += [f"{name} {nbytes(size)}" for name, size in report.storage.items()]
    return [*lines, "          " + "; ".join(words)]


def nbytes(size: float) -> str:
    """Return a size as people read it: 1,330.5 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} B"


def seconds(duration: float) -> str:
    """Return a duration as people read it."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if duration >= unit:
            return f"{duration / unit:.1f} {name}"
    return "0" if duration == 0 else "<1 us"


def times(value: float) -> str:
    """Return a ratio as people read it: 14.4x."""
    return "nothing stored" if value == float("inf") else f"{value:,.1f}x"


def _peak_words(report: Report) -> str:
    peak = report.peak
    if peak is None:
        return ""
    places = []
    if peak.resident is not None:
        places.append(f"{nbytes(peak.resident)} resident")
    if peak.accelerator is not None:
        places.append(f"{nbytes(peak.accelerator)} on {peak.device}")
    return f"; peak {', '.join(places)}" if places else ""


def _body(report: Report, width: int) -> list[Text | Table]:
    parts: list[Text | Table] = []
    steps = max(report.snapshot.n_steps, 1)
    by_role, by_module = report.by_role(), report.by_module()
    if by_role:
        parts += [Text(""), _coded_table("by role", by_role, steps, len(by_role), width)]
    if len(by_module) > 1:
        parts += [Text(""), _coded_table("largest modules", by_module, steps, N_MODULES, width)]
    kept = _kept_by_reason(report)
    if kept:
        parts += [Text(""), _kept_table(kept, steps)]
    for note in report.notes:
        parts += [Text(""), Text(f"note: {note}")]
    return parts


def _coded_table(title: str, groups: dict[str, Coded], steps: int, n_rows: int, width: int) -> Table:
    table = _table(title)
    for heading in NUMBERS if width < NARROW else NUMBERS + MORE_NUMBERS:
        table.add_column(heading, justify="right")
    table.add_column("codec")
    for name, coded in list(groups.items())[:n_rows]:
        cells = [
            _count(coded.n / steps),
            nbytes(coded.nbytes_in / steps),
            nbytes(coded.nbytes_out / steps),
            times(ratio(coded.nbytes_in, coded.nbytes_out)),
        ]
        if width >= NARROW:
            cells += [seconds(coded.encode_seconds / steps), seconds(coded.decode_seconds / steps)]
            cells += [f"{coded.worst_error:.3f} of bound" if coded.worst_error else "-"]
        table.add_row(name or "(outside the modules)", *cells, ", ".join(sorted(coded.codecs)))
    if len(groups) > n_rows:
        table.add_row(f"... and {len(groups) - n_rows} more")
    return table


def _kept_table(kept: dict[str, tuple[Count, list[str]]], steps: int) -> Table:
    table = _table("kept as they are, because")
    table.add_column("tensors", justify="right")
    table.add_column("bytes", justify="right")
    table.add_column("where")
    for reason, (count, places) in list(kept.items())[:N_KEPT]:
        where = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        table.add_row(reason, _count(count.n / steps), nbytes(count.nbytes / steps), where)
    return table


def _table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(title, overflow="fold")
    return table


def _kept_by_reason(report: Report) -> dict[str, tuple[Count, list[str]]]:
    """Return the sums by reason, the largest first, with the functions or modules that hold the most of it."""
    counts: dict[str, Count] = {}
    places: dict[str, dict[str, int]] = {}
    for (path, role, reason, detail), count in report.snapshot.total.kept.items():
        counts.setdefault(reason, Count()).add(count)
        place = detail or path or role
        sizes = places.setdefault(reason, {})
        sizes[place] = sizes.get(place, 0) + count.nbytes
    order = sorted(counts, key=lambda reason: -counts[reason].nbytes)
    return {
        reason: (counts[reason], sorted(places[reason], key=lambda place: -places[reason][place])) for reason in order
    }


def _count(n: float) -> str:
    return f"{n:,.0f}" if n >= 10 or n == int(n) else f"{n:.1f}"
