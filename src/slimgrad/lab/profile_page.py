"""The page of a profile: bytes by role and module, density over training, what codes make of it, zero patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slimgrad.lab.density import CODES, LAYOUTS, Layer, Observation
from slimgrad.lab.profile import to_json
from slimgrad.ledger import Coded
from slimgrad.report import charts, page
from slimgrad.report.charts import Bar, Series
from slimgrad.report.table import nbytes

N_BARS, N_PICTURES = 40, 4
VERDICT = {True: "holds", False: "does not hold", None: "cannot tell"}


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write the page."""
    recipe, report, course = result["recipe"], result["report"], result["course"]
    last = course[max(course)]
    lead = (
        f"Trained plain for {recipe['steps']} steps of {recipe['batch']}; test accuracy "
        f"{result['test']['accuracy']:.1%}. Bytes are of one step under {recipe['bound']}."
    )
    sections = [
        page.section("Where the bytes are", _bars("by role", report.by_role()), _bars("by module", report.by_module())),
        page.wide("Four observations of cDMA", observed(result["observations"])),
    ]
    if last:
        maps = "White is non-zero; first channels of one example."
        sections += [
            page.section("Density over training", heat(course), lines(course)),
            page.wide("What codes make of it, after training", ratios(last)),
            page.wide("Where maps are zero", *patterns(course), text=maps),
        ]
    sections.append(page.wide("Notes", *(f"<p>{escape(note)}</p>" for note in report.notes)))
    title = f"slimgrad profile: {recipe['model']} on {recipe['data']}"
    figures = {
        key: value for key, value in to_json(dict(result)).items() if key in ("course", "observations", "report")
    }
    page.write(path, title, sections, lead, figures)


def _bars(caption: str, groups: Mapping[str, Coded]) -> str:
    rows = [
        Bar(name or "(model)", c.nbytes_in, c.nbytes_out, f"{nbytes(c.nbytes_in)} → {nbytes(c.nbytes_out)}")
        for name, c in list(groups.items())[:N_BARS]
    ]
    return charts.bars(f"saved for backward in one step, {caption}", rows, "plain PyTorch", "slimgrad")


def observed(found: Sequence[Observation]) -> str:
    """Return the four claims with what came out."""
    rows = [(one.claim, VERDICT[one.holds], one.found) for one in found]
    return charts.table("reported as they come out", ("claim", "here", "found"), rows, "observations")


def heat(course: Mapping[float, Sequence[Layer]]) -> str:
    """Return the densities of all layers as a heat map."""
    times = sorted(course)
    names = [f"{layer.name} {'(pool)' if layer.is_pool else ''}".strip() for layer in course[times[0]]]
    values = [[course[t][i].density for t in times] for i in range(len(names))]
    return charts.heat("share of non-zero values", names, [f"{t:.0%}" for t in times], values)


def lines(course: Mapping[float, Sequence[Layer]]) -> str:
    """Return the mean ratio of every code over the layers, over training."""
    times = sorted(course)
    series = []
    for number, code in enumerate(CODES):
        points = []
        for t in times:
            kept = [layer.ratios["NCHW"][code] for layer in course[t]]
            points.append((100 * t, len(kept) / sum(1 / ratio for ratio in kept)))
        series.append(Series(code, points, number))
    return charts.lines("ratio of codes, mean over layers (harmonic)", series, "% of training", "original / stored")


def ratios(layers: Sequence[Layer]) -> str:
    """Return entropy and ratios by layer and layout."""
    headings = ("layer", "shape", "density", "entropy", *(f"{code} {way}" for code in CODES for way in LAYOUTS))
    rows = [
        (
            layer.name,
            " x ".join(map(str, layer.shape)),
            f"{layer.density:.0%}",
            f"{layer.entropy:.2f} bit",
            *(f"{layer.ratios[w][c]:.2f}x" if w in layer.ratios else "-" for c in CODES for w in LAYOUTS),
        )
        for layer in layers
    ]
    return charts.table("nested is lossy, the others are not", headings, rows, "ratios")


def patterns(course: Mapping[float, Sequence[Layer]]) -> list[str]:
    """Return the zero patterns of a few layers over training."""
    times = sorted(course)
    drawn = [i for i, layer in enumerate(course[times[0]]) if layer.picture]
    chosen = drawn[:: max(1, -(-len(drawn) // N_PICTURES))]
    return [
        charts.pictures(
            course[times[0]][i].name, [(f"{t:.0%}", course[t][i].picture) for t in times],
            scale=max(1, 160 // len(course[times[0]][i].picture)),
        )
        for i in chosen
    ]  # fmt: skip
