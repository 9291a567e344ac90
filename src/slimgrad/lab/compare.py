"""Plain against slim on the same data with the same seeds: runs, and the table that says what came out.

    results = compare(recipe, arms=["plain", "slim", "relative:0.5"], seeds=range(3), folder=Path("out/compare"))
    rows_of(results)

Every run has a process of its own, so that peaks are its own; arms take turns within a seed, and which begins changes
from seed to seed, so that the machine's moods hit all alike. Differences are to plain, seed by seed (spread.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slimgrad.errors import ConfigError
from slimgrad.lab.fleet import Tell, run_all
from slimgrad.lab.recipe import Recipe, arm_word
from slimgrad.lab.spread import Difference, Spread, difference, spread

PLAIN = "plain"
COMET = {"AlexNet": 13.5, "VGG-16": 11.1, "ResNet-18": 10.7, "ResNet-50": 11.0}
COMET_ROW = "COMET, as published"
COMET_NOTE = (
    "The ratios of COMET are those of its paper (PVLDB 15, 2022): inputs of convolutions only, ImageNet, V100 GPUs, "
    f"{', '.join(f'{net} {ratio}x' for net, ratio in COMET.items())}. Ours are over all saved activations, on the data "
    "named above. They stand side by side and were not measured side by side."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One arm over its seeds. Memory in bytes beyond what is there before a step; ratios are plain / arm."""

    arm: str
    n: int
    peak_live: float
    peak_resident: float
    peak_ratio: float | None
    saved_ratio: float | None
    seconds: float
    time_ratio: float | None  # arm / plain
    examples_per_second: float
    loss: Spread
    accuracy: Spread
    loss_difference: Difference | None
    accuracy_difference: Difference | None
    noise: float | None
    is_text: bool = False
    has_huge_pages: bool | None = None  # asked for by all of its processes; None: by some


def planned(recipe: Recipe, arms: Sequence[str], seeds: Iterable[int], prefix: str = "") -> dict[str, Recipe]:
    """Return the runs by name, in the order in which they take turns."""
    if len(set(arms)) != len(arms) or not arms:
        raise ConfigError(f"expected arms that differ, such as --arms plain,slim,relative:0.5, got {','.join(arms)!r}")
    recipes = {}
    for number, seed in enumerate(seeds):
        first = number % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            recipes[f"{prefix}{arm.replace(':', '_')}-seed{seed}"] = replace(recipe, seed=seed).for_arm(arm)
    return recipes


def compare(
    recipe: Recipe, arms: Sequence[str], seeds: Iterable[int], folder: Path, jobs: int = 1, tell: Tell | None = None
) -> list[dict[str, Any]]:
    """Run what is not there yet, and return all results; runs that have finished are in folder/runs."""
    recipes = planned(recipe, arms, seeds)
    return list(run_all(recipes, folder / "runs", folder / "work", jobs, tell or (lambda name, what: None)).values())


def arm_of(result: Mapping[str, Any]) -> str:
    """Return the word for the arm of a result."""
    return arm_word(result["recipe"])


def by_arm(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Return the results by arm and seed: plain first, checkpointing last."""
    groups: dict[str, dict[int, Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(arm_of(result), {})[result["recipe"]["seed"]] = result
    order = {PLAIN: 0, "checkpoint": 2}
    return dict(sorted(groups.items(), key=lambda item: order.get(item[0], 1)))


def rows_of(results: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return one row per arm."""
    groups = by_arm(results)
    return [_row(arm, runs, groups.get(PLAIN, {})) for arm, runs in groups.items()]


def _row(arm: str, runs: Mapping[int, Mapping[str, Any]], plain: Mapping[int, Mapping[str, Any]]) -> Row:
    def mean(key: str, of: Mapping[int, Mapping[str, Any]] = runs) -> float | None:
        known = [run["final"][key] for run in of.values() if run["final"].get(key) is not None]
        return sum(known) / len(known) if known else None

    def against_plain(key: str) -> Difference | None:
        ours, theirs = ({seed: run["final"][key] for seed, run in of.items()} for of in (runs, plain))
        return None if arm == PLAIN else difference(ours, theirs)

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    processors = [{run["machine"].get("processor") for run in of.values()} for of in (runs, plain)]
    is_comparable = len(processors[0] | processors[1]) == 1  # times of other machines say nothing
    pages = {run["machine"].get("huge pages") == "asked for" for run in runs.values()}
    peak, seconds = mean("peak_live") or 0.0, mean("seconds_per_step") or 0.0
    return Row(
        arm=arm,
        n=len(runs),
        peak_live=peak,
        peak_resident=mean("peak_resident") or 0.0,
        peak_ratio=None if arm == PLAIN else ratio(mean("peak_live", plain), peak),
        saved_ratio=mean("saved_ratio"),
        seconds=seconds,
        time_ratio=ratio(seconds, mean("seconds_per_step", plain)) if arm != PLAIN and is_comparable else None,
        examples_per_second=mean("examples_per_second") or 0.0,
        loss=spread([run["final"]["test_loss"] for run in runs.values()]),
        accuracy=spread([run["final"]["test_accuracy"] for run in runs.values()]),
        loss_difference=against_plain("test_loss"),
        accuracy_difference=against_plain("test_accuracy"),
        noise=mean("noise"),
        is_text=any(run["unit"] == "tokens" for run in runs.values()),
        has_huge_pages=pages.pop() if len(pages) == 1 else None,
    )


def perplexity_change(found: Difference) -> Difference:
    """Return a difference of losses as one of perplexities, in shares: exp(d) - 1."""
    low, high = (None if end is None else exp(end) - 1.0 for end in (found.low, found.high))
    return Difference(exp(found.mean) - 1.0, low, high, found.n)


def exp(loss: float) -> float:
    """Return the perplexity of a loss; one that learnt nothing may have more than a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
