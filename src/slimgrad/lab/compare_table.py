"""The table of a comparison, in a terminal and in a page: the same words in both."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from slimgrad.lab.compare import COMET, COMET_NOTE, COMET_ROW, Row, exp, perplexity_change
from slimgrad.lab.spread import Difference, Spread
from slimgrad.report.table import nbytes

FIGURE = {False: "accuracy", True: "perplexity"}
COSTS = ("arm", "seeds", "peak", "smaller", "resident", "saved", "step", "time", "per s")
LEGEND = (
    "peak: live tensors beyond what is there before a step, at its highest within one usual step; smaller: plain / "
    "arm; resident: most memory of the process in the whole run beyond what it had before the first step, with "
    "libraries, with steps in which a bound measures and without audits; saved: original / stored bytes over all "
    "saved activations of the run; time: arm / plain."
)
PAGES_NOTE = (
    "Every process asks for huge pages (THP_MEM_ALLOC_ENABLE=1), plain ones too: faster, and freed memory goes back to "
    "the system."
)
MIXED_PAGES = "Some processes asked for huge pages and some did not: resident and time are not comparable between them."
CHECKPOINT_NOTE = "Recomputing a batch norm updates its running statistics twice: checkpointing tests differently."


def learnt(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the words above the columns of what was learnt."""
    return ("arm", "test loss", FIGURE[any(row.is_text for row in rows)], "- plain [95 % interval]", "noise")


def cost_cells(row: Row) -> tuple[str, ...]:
    """Return what one arm takes, as words."""
    return (
        row.arm,
        str(row.n),
        nbytes(row.peak_live),
        _times(row.peak_ratio),
        nbytes(row.peak_resident),
        _times(row.saved_ratio),
        f"{row.seconds:.3f} s",
        _times(row.time_ratio),
        f"{row.examples_per_second:,.0f}",
    )


def learnt_cells(row: Row) -> tuple[str, ...]:
    """Return what one arm has learnt, as words."""
    noise = "-" if row.noise is None else f"{row.noise:.4f}"
    return (row.arm, f"{row.loss.mean:.4f}{_spread(row.loss)}", _figure(row), _difference(row), noise)


def learnt_figures(row: Row) -> tuple[str, str, str]:
    """Return the name of what counts as learnt, its figure, and its difference to plain."""
    return FIGURE[row.is_text], _figure(row), _difference(row)


def _spread(found: Spread, factor: float = 1.0, form: str = ".4f") -> str:
    """Return the spread over seeds; nothing of a single one."""
    return f" ± {factor * found.deviation:{form}}" if found.n > 1 else ""


def published() -> tuple[str, ...]:
    """Return COMET's row among the costs: its ratios are on the inputs of convolutions, on ImageNet."""
    ratios = " / ".join(f"{ratio}x" for ratio in COMET.values())
    return (COMET_ROW, "-", "-", "-", "-", ratios, "-", "-", "-")


def notes(rows: Sequence[Row]) -> list[str]:
    """Return what has to be said about the numbers."""
    checkpointing = CHECKPOINT_NOTE if any(row.arm == "checkpoint" for row in rows) else ""
    return [note for note in (LEGEND, pages_note(rows), checkpointing, COMET_NOTE) if note]


def pages_note(rows: Sequence[Row]) -> str:
    """Return what has to be said about huge pages; often nothing."""
    found = {row.has_huge_pages for row in rows}
    return PAGES_NOTE if found == {True} else "" if found == {False} else MIXED_PAGES


def table(rows: Sequence[Row], title: str) -> Group:
    """Return what arms take and what they learn, for a terminal."""
    costs, results = _table(COSTS, title), _table(learnt(rows), "")
    for row in rows:
        costs.add_row(*cost_cells(row))
        results.add_row(*learnt_cells(row))
    return Group(costs, Text(""), results, Text(""), Text("\n".join(notes(rows)), style="dim"))


def _table(headings: Sequence[str], title: str) -> Table:
    shown = Table(title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for number, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return shown


def _figure(row: Row) -> str:
    if row.is_text:
        return f"{exp(row.loss.mean):.4f}"
    return f"{100 * row.accuracy.mean:.2f} %{_spread(row.accuracy, 100, '.2f')}"


def _difference(row: Row) -> str:
    if row.is_text:
        return _interval(row.loss_difference and perplexity_change(row.loss_difference), "%")
    return _interval(row.accuracy_difference, "pt")


def _interval(found: Difference | None, unit: str) -> str:
    if found is None:
        return "-"
    mean = f"{100 * found.mean:+.2f} {unit}"
    return (
        mean if found.low is None or found.high is None else f"{mean} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    )


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
