"""The batch of a recipe in parts that fit in memory: what `slimgrad train --batch auto` does before it trains.

    recipe, fit = fitted(recipe, "auto")       the recipe with `part` set, and what fit_batch tried
    recipe = resumed(recipe, checkpoint)       ... or with the part that a run began with

The batch stays what the recipe says, so the run is the one that was asked for: where it does not fit, gradients of its
parts are added up. Only batch norm sees the difference. A run that is resumed keeps its parts, whatever fits now.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slimgrad.lab import checkpoint
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run
from slimgrad.planner.budget_size import Size
from slimgrad.planner.fit_batch import FittedBatch, fit_batch

AUTO = "auto"


def fitted(recipe: Recipe, budget: Size = AUTO) -> tuple[Recipe, FittedBatch]:
    """Return the filled recipe with the largest part of its batch that fits; a run of its own is trained to find it."""
    filled = recipe.filled()
    run = Run(filled)
    try:
        fit = fit_batch(lambda n: run.learn(*run.fitted_batch(0, n, filled.seed)), budget, ceiling=filled.batch)
    finally:
        run.close()
    return replace(filled, part=0 if fit >= filled.batch else int(fit)), fit


def resumed(recipe: Recipe, path: Path) -> Recipe:
    """Return the recipe with the part of the run that is saved there."""
    return replace(recipe, part=checkpoint.load_run(path)["recipe"].get("part", 0))
