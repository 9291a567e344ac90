"""The page of one run or of a comparison: what the numbers of result files look like. No number is made here.

Arms keep their colour through the page; plain is grey. Seeds are thin lines, their mean is the thick one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slimgrad.lab import compare_table
from slimgrad.lab.compare import PLAIN, Row, by_arm, rows_of
from slimgrad.report import charts, memory_chart, page
from slimgrad.report.charts import Series, Tile
from slimgrad.report.memory_chart import Curve
from slimgrad.report.table import nbytes

N_LAYERS = 40

Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]  # by arm and seed


def write(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of some results of one model on one data set."""
    groups, rows = by_arm(results), rows_of(results)
    recipe, machine = results[0]["recipe"], results[0]["machine"]
    title = f"slimgrad: {recipe['model']} on {recipe['data']}"
    options = ", ".join(f"{key} {value}" for key, value in recipe["options"].items())
    how = f"{recipe['optimizer']} at {recipe['lr']:g}{'; ' if options else ''}{options}"
    lead = (
        f"{recipe['steps']} steps of {recipe['batch']}, {how}. "
        f"slimgrad {machine['slimgrad']}, torch {machine['torch']}, {machine['processor']}, "
        f"kernels {machine['kernels']}."
    )
    costs = [compare_table.cost_cells(row) for row in rows] + [compare_table.published()]
    learnt = [compare_table.learnt_cells(row) for row in rows]
    tables = [
        charts.table("memory and time", compare_table.COSTS, costs, "costs"),
        charts.table("what was learnt", compare_table.learnt(rows), learnt, "learnt"),
    ]
    colours = colours_of(list(groups))
    sections = [
        charts.tiles(tiles(rows)),
        page.wide("Memory over one step", memory(groups, colours)),
        page.wide("The table", *tables, text=" ".join(compare_table.notes(rows))),
        page.section("Learning", *learning(groups, colours)),
        page.section("Compression over training", *compression(groups, colours)),
        page.section("Where the bytes are", *(layers(arm, runs) for arm, runs in groups.items())),
    ]
    page.write(path, title, sections, lead, {"rows": [asdict(row) for row in rows]})


def colours_of(arms: Sequence[str]) -> dict[str, int]:
    """Return the number of each arm's colour: the neutral one is plain's alone, the others are taken in turns."""
    others = [arm for arm in arms if arm != PLAIN]
    return {PLAIN: 0} | {arm: 1 + number % (charts.N_COLOURS - 1) for number, arm in enumerate(others)}


def tiles(rows: Sequence[Row]) -> list[Tile]:
    """Return the figures of the first arm that compresses, beside plain where it ran; else those of the only arm."""
    plain = next((row for row in rows if row.arm == PLAIN), None)
    row = next((row for row in rows if row.saved_ratio is not None), rows[0])
    is_compared = plain is not None and row is not plain
    peak = nbytes(row.peak_live)
    if plain is not None and is_compared:
        peak = _from_to(nbytes(plain.peak_live), peak)
    shown = [Tile("peak memory of a step", peak, _smaller(row.peak_ratio))]
    if row.saved_ratio is not None:
        shown.append(Tile("saved activations", _smaller(row.saved_ratio), row.arm))
    name, figure, difference = compare_table.learnt_figures(row)
    shown.append(Tile(f"test {name}", figure, f"{difference} to plain" if is_compared else ""))
    times = "" if row.time_ratio is None else f"{row.time_ratio:.2f}x plain"
    return [*shown, Tile("time of a step", f"{row.seconds:.3f} s", times)]


def _from_to(before: str, after: str) -> str:
    """Return "196.5 → 47.9 MiB"; units that differ are both said."""
    same = before.rpartition(" ")[2] == after.rpartition(" ")[2]
    return f"{before.rpartition(' ')[0] if same else before} → {after}"


def _smaller(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}x smaller"


def memory(groups: Runs, colours: Mapping[str, int]) -> str:
    """Return live bytes beyond static through one forward and backward, of the first seed."""
    curves = []
    for arm, runs in groups.items():
        course = next(iter(runs.values()))["timeline"]
        curves.append(Curve(arm, course["samples"], course["forward"], colours[arm]))
    return memory_chart.draw(curves)


def learning(groups: Runs, colours: Mapping[str, int]) -> list[str]:
    """Return the curves of loss and accuracy."""
    percent = "{:.0f} %".format
    return [
        charts.lines("training loss", _curves(groups, colours, "train", "loss"), "step", "loss"),
        charts.lines("test loss", _curves(groups, colours, "test", "loss"), "step", "loss"),
        charts.lines(
            "test accuracy", _curves(groups, colours, "test", "accuracy", 100.0), "step", "accuracy", percent,
            from_zero=False,
        ),
    ]  # fmt: skip


def compression(groups: Runs, colours: Mapping[str, int]) -> list[str]:
    """Return ratio, measured gradient noise and mean bound over training, of the arms that compress."""
    slim = {arm: runs for arm, runs in groups.items() if next(iter(runs.values()))["recipe"]["arm"] == "slim"}
    for runs in slim.values():
        for run in runs.values():
            for point in run["history"]["train"]:
                point["ratio"] = point["saved_in"] / point["saved_out"] if point.get("saved_out") else None
    expected = [
        one._replace(is_dashed=True, name=f"{one.name}, expected")
        for one in _curves(slim, colours, "noise", "expected")
        if not one.is_thin
    ]
    measured = _curves(slim, colours, "noise", "measured")
    ratios, times = _curves(slim, colours, "train", "ratio"), "{:g}x".format
    return [
        charts.lines("ratio over all saved activations", ratios, "step", "ratio", times),
        charts.lines(
            "gradient noise, measured by audits", measured + expected, "step", "error energy / gradient energy"
        ),
        charts.lines("mean bound", _curves(slim, colours, "noise", "rel"), "step", "largest error / RMS of the values"),
    ]  # fmt: skip


def layers(arm: str, runs: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the bytes per step of the largest layers, plain and slim."""
    rows = next(iter(runs.values()))["layers"][:N_LAYERS]
    drawn = [
        charts.Bar(
            f"{row['module'] or '(model)'}: {row['role']}",
            row["saved_in"],
            row["saved_out"],
            f"{nbytes(row['saved_in'])} → {nbytes(row['saved_out'])}",
        )
        for row in rows
    ]
    return charts.bars(f"saved for backward, per step: {arm}", drawn, "plain PyTorch", arm)


def _curves(groups: Runs, colours: Mapping[str, int], kind: str, key: str, factor: float = 1.0) -> list[Series]:
    """Return a thin line per seed and the mean of all; a single seed is its own mean."""
    series = []
    for arm, runs in groups.items():
        by_step: dict[int, list[float]] = {}
        seeds = []
        for run in runs.values():
            points = [(p["step"], factor * p[key]) for p in run["history"][kind] if p.get(key) is not None]
            seeds.append(Series(arm, points, colours[arm], is_thin=True))
            for step, value in points:
                by_step.setdefault(step, []).append(value)
        means = [(step, sum(values) / len(values)) for step, values in sorted(by_step.items())]
        series += (seeds if len(runs) > 1 else []) + [Series(arm, means, colours[arm])]
    return series
