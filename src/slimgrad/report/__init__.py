"""What a session did, for people and for programs. Pure presentation: every number comes from the caller.

    report = Report(ledger.snapshot(), storage={"pools at most": arena.nbytes_peak}, peak=meter.read())
    print(report)            a table
    report.to_json()         the same numbers
    report.to_html(path)     and as a page

Three ratios, always original / stored bytes and always apart, because they differ and papers mix them: over the coded
tensors; over all saved activations; and the measured peak, which no ratio of saved bytes predicts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slimgrad.ledger import NOT_ACTIVATIONS, Coded, Snapshot, Sums, ratio
from slimgrad.report.memory import Peak
from slimgrad.report.notes import notes

__all__ = ["Report"]


class Report:
    """Numbers of one session at one moment. `storage` names what the session's pools hold, in bytes."""

    def __init__(
        self,
        snapshot: Snapshot,
        storage: Mapping[str, int] | None = None,
        peak: Peak | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        self.snapshot = snapshot
        self.remarks = list(remarks)  # what the session knows beyond the numbers
        self.storage = dict(storage or {})
        self.peak = peak

    @property
    def coded_ratio(self) -> float:
        """Original / stored bytes over the coded tensors of all steps."""
        return self.snapshot.total.coded_ratio

    @property
    def saved_ratio(self) -> float:
        """Original / stored bytes over all saved activations of all steps."""
        return self.snapshot.total.saved_ratio

    @property
    def notes(self) -> list[str]:
        """What stands out, and what to type about it."""
        return notes(self.snapshot) + self.remarks

    def by_role(self) -> dict[str, Coded]:
        """Return the sums of the coded tensors of all steps by role, the largest first."""
        return _grouped(self.snapshot.total, 1)

    def by_module(self) -> dict[str, Coded]:
        """Return the same by module path."""
        return _grouped(self.snapshot.total, 0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists and dicts; bytes and seconds are sums over `n_steps` steps."""
        total = self.snapshot.total
        return {
            "n_steps": self.snapshot.n_steps,
            "total": _ratios(total),
            "last_step": _ratios(self.snapshot.last),
            "roles": [{"role": role, **_plain(coded)} for role, coded in self.by_role().items()],
            "modules": [{"module": path, **_plain(coded)} for path, coded in self.by_module().items()],
            "kept": [
                {"module": path, "role": role, "reason": reason, "detail": detail, **asdict(count)}
                for (path, role, reason, detail), count in sorted(total.kept.items(), key=lambda kv: -kv[1].nbytes)
            ],
            "repeats": {
                "n": sum(count.n for count in total.repeats.values()),
                "nbytes": sum(count.nbytes for count in total.repeats.values()),
            },
            "skipped": dict(total.skipped),
            "storage": dict(self.storage),
            "peak": None if self.peak is None else asdict(self.peak),
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """Return to_dict() as text; an infinite ratio (nothing had to be stored) is null."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one self-contained page with the same numbers."""
        from slimgrad.report import session_page

        session_page.write(self, Path(path))

    def __str__(self) -> str:
        from slimgrad.report.table import render  # rich takes a while to import

        return render(self)

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from slimgrad.report.table import layout

        yield layout(self, options.max_width)

    def __repr__(self) -> str:
        return f"<Report of {self.snapshot.n_steps} steps: {self.saved_ratio:.1f}x over all saved activations>"


def _grouped(sums: Sums, part: int) -> dict[str, Coded]:
    groups: dict[str, Coded] = {}
    for key, coded in sums.coded.items():
        groups.setdefault(key[part], Coded()).add(coded)
    return dict(sorted(groups.items(), key=lambda item: -item[1].nbytes_in))


def _ratios(sums: Sums) -> dict[str, Any]:
    others = sum(count.nbytes for (_, _, reason, _), count in sums.kept.items() if reason in NOT_ACTIVATIONS)
    return {
        "saved_in": sums.saved_in,
        "saved_out": sums.saved_out,
        "saved_ratio": _finite(sums.saved_ratio),
        "coded_in": sums.coded_in,
        "coded_out": sums.coded_out,
        "coded_ratio": _finite(sums.coded_ratio),
        "kept_activations": sums.kept_activations,
        "not_activations": others,
    }


def _plain(coded: Coded) -> dict[str, Any]:
    return {
        "ratio": _finite(ratio(coded.nbytes_in, coded.nbytes_out)),
        **asdict(coded),
        "worst_error": _finite(coded.worst_error),
        "codecs": sorted(coded.codecs),
    }


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
