"""Shows what steps.py and peak.py measured: a table for people, a dict for programs, with the same numbers.

Time is a multiple of plain in the same round (median, quartiles in brackets): smaller is better. Memory is peak minus
static, and its ratio is plain / arm: larger is better. "saved" is the ratio over all saved activations.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table

from slimgrad.lab.arms import ARMS, Setup
from slimgrad.lab.peak import KINDS, Weight
from slimgrad.lab.steps import Times

MEBIBYTE = 1 << 20
COLUMNS = ("step", "x plain", "huge pages", "live", "ratio", "resident", "ratio", "huge pages", "ratio", "saved")


@dataclass(slots=True)
class Result:
    """Everything measured of one setup; what was not asked for is empty."""

    setup: Setup
    times: Times | None = None
    huge_pages: Times | None = None  # in a process where torch has huge pages
    weights: dict[str, dict[str, Weight]] = field(default_factory=dict)  # by kind and arm

    def peak_ratio(self, kind: str, arm: str) -> float:
        """Return (peak - static) of plain over that of the arm."""
        weights = self.weights[kind]
        return weights["plain"].beyond_static / max(1, weights[arm].beyond_static)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers with the ratios that the table shows."""
        times = None if self.times is None else _times(self.times)
        huge = None if self.huge_pages is None else _times(self.huge_pages)
        weights = {
            kind: {arm: {**asdict(weight), "ratio": self.peak_ratio(kind, arm)} for arm, weight in by_arm.items()}
            for kind, by_arm in self.weights.items()
        }
        return {"setup": asdict(self.setup), "times": times, "huge_pages": huge, "peak": weights}


def _times(times: Times) -> dict[str, Any]:
    arms = {
        arm: {"seconds": seconds, "median": times.median(arm), "ratio": times.ratio(arm)._asdict()}
        for arm, seconds in times.seconds.items()
    }
    return {"arms": arms}


def table(results: list[Result]) -> Group:
    """Return one table per setup, with one row per arm and the columns that were measured."""
    return Group(*(Padding(_table(result), (0, 0, 1, 0)) for result in results))


def _table(result: Result) -> Table:
    shown = Table(title=str(result.setup), title_justify="left", box=None, header_style="bold", pad_edge=False)
    shown.add_column("arm", no_wrap=True)
    rows = {arm: _cells(result, arm) for arm in ARMS}
    used = [i for i in range(len(COLUMNS)) if any(cells[i] != "-" for cells in rows.values())]
    for i in used:
        shown.add_column(COLUMNS[i], justify="right", no_wrap=True)
    for arm, cells in rows.items():
        if any(cell != "-" for cell in cells):
            shown.add_row(arm, *(cells[i] for i in used))
    return shown


def _cells(result: Result, arm: str) -> list[str]:
    cells = [_seconds(result.times, arm), _ratio(result.times, arm), _ratio(result.huge_pages, arm)]
    saved = "-"
    for kind in KINDS:
        weight = result.weights.get(kind, {}).get(arm)
        if weight is None:
            cells += ["-", "-"]
            continue
        cells += [f"{weight.beyond_static / MEBIBYTE:,.0f} MiB", f"{result.peak_ratio(kind, arm):.2f}x"]
        if weight.saved_ratio is not None:
            saved = f"{weight.saved_ratio:.2f}x"
    return [*cells, saved]


def _seconds(times: Times | None, arm: str) -> str:
    return "-" if times is None or arm not in times.seconds else f"{times.median(arm):.3f} s"


def _ratio(times: Times | None, arm: str) -> str:
    if times is None or arm not in times.seconds:
        return "-"
    ratio = times.ratio(arm)
    return "1" if arm == "plain" else f"{ratio.median:.3f} [{ratio.low:.2f}-{ratio.high:.2f}]"
