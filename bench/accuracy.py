"""Does training under a noise budget reach what plain training reaches? CIFAR-10 and text, the same seeds in all arms.

    nice python bench/accuracy.py --jobs 2                          the ResNet-18 part: plain and Noise, seeds 0 to 2
    nice python bench/accuracy.py --net gpt --arms plain,noise:0.05
    python bench/accuracy.py --table                                what has finished so far, running nothing

One thread and one process per run; every finished run is one JSON file in --results, and is not repeated. A stop at any
moment loses at most a minute: the same command goes on. The table gives each arm's difference to plain, seed by seed,
with its 95 % interval. Networks are reduced so that two cores can train them, and nothing here is ImageNet.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slimgrad.errors import ConfigError
from slimgrad.lab.fleet import run_all
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.spread import difference, spread
from slimgrad.lab.words import bound_of

ROOT = Path(__file__).resolve().parents[1]
BASE = Recipe("resnet18", "cifar10", epochs=12, batch=128, audits=12, threads=1)
NETS = {
    "resnet18": replace(BASE, options={"width": 0.25}),
    "vgg16_bn": replace(BASE, model="vgg16_bn", options={"width": 0.25, "dropout": 0.0}, lr=0.05),
    "alexnet": replace(BASE, model="alexnet", options={"width": 0.5}),
    "resnet50": replace(BASE, model="resnet50", options={"width": 0.125}),
    "gpt": Recipe("gpt", "sotu", size=256, steps=2000, batch=16, audits=12, test_examples=1024, threads=1),
}
ARMS = "plain,noise:0.05,noise:0.2"


def name_of(net: str, arm: str, seed: int) -> str:
    return f"{net}-{arm.replace(':', '_')}-seed{seed}"


def planned(net: str, arms: list[str], seeds: list[int]) -> dict[str, Recipe]:
    """Return the runs by name: seed by seed, so that every arm has as many as the others at any time."""
    recipes = {}
    for seed in seeds:
        for arm in arms:
            chosen = {"arm": arm} if arm in ("plain", "checkpoint") else {"arm": "slim", "bound": arm}
            recipes[name_of(net, arm, seed)] = replace(NETS[net], seed=seed, **chosen)
    return recipes


def figure(result: dict[str, Any]) -> float:
    """Return what is compared: accuracy in points, or for text the perplexity in per cent, as its logarithm."""
    if result["unit"] == "tokens":
        return 100 * result["final"]["test_loss"]
    return 100 * result["final"]["test_accuracy"]


def table(net: str, arms: list[str], results: dict[str, dict[str, Any]]) -> Table:
    """Return one row per arm, over the seeds that have finished."""
    is_text = NETS[net].data == "sotu"
    shown = Table(title=f"{net} on {NETS[net].data}", title_justify="left", box=None, pad_edge=False)
    for heading in ("arm", "seeds", "perplexity" if is_text else "accuracy", "- plain, 95 % interval"):
        shown.add_column(heading)
    for heading in ("saved ratio", "noise", "s/step"):
        shown.add_column(heading, justify="right")
    by_arm = {arm: {} for arm in arms}
    for result in results.values():
        recipe = result["recipe"]
        arm = recipe["bound"] if recipe["arm"] == "slim" else recipe["arm"]
        if recipe["model"] == NETS[net].model and arm in by_arm:
            by_arm[arm][recipe["seed"]] = result
    for arm, runs in by_arm.items():
        if runs:
            shown.add_row(arm, str(len(runs)), *cells(arm, runs, by_arm.get("plain", {}), is_text))
    return shown


def cells(arm: str, runs: dict[int, Any], plain: dict[int, Any], is_text: bool) -> list[str]:
    figures = {seed: figure(run) for seed, run in runs.items()}
    mean = spread(list(figures.values()))
    value = f"{math.exp(mean.mean / 100):.4f}" if is_text else f"{mean.mean:.2f} +- {mean.deviation:.2f}"
    unit = " %" if is_text else " points"
    found = difference(figures, {seed: figure(run) for seed, run in plain.items()})
    against = "-"
    if found is not None and arm != "plain":
        interval = "" if found.low is None else f" [{found.low:+.2f}, {found.high:+.2f}]"
        against = f"{found.mean:+.2f}{interval}{unit}"
    finals = [run["final"] for run in runs.values()]
    ratio, noise = (mean_of([final[key] for final in finals]) for key in ("saved_ratio", "noise"))
    seconds = mean_of([final["seconds_per_step"] for final in finals])
    return [value, against, "-" if ratio is None else f"{ratio:.2f}x", "-" if noise is None else f"{noise:.4f}",
            "-" if seconds is None else f"{seconds:.3f}"]  # fmt: skip


def mean_of(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return spread(known).mean if known else None


def seeds_of(text: str) -> list[int]:
    """Return the seeds of "0-2" or "0,3,5"."""
    first, dash, last = text.partition("-")
    try:
        return list(range(int(first), int(last) + 1)) if dash else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"expected --seeds such as 0-2 or 0,3,5, got {text!r}") from error


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Accuracy of training under a noise budget against plain training.")
    parser.add_argument("--net", choices=NETS, default="resnet18")
    parser.add_argument("--arms", default=ARMS, help=f"plain, checkpoint or bounds, by commas; default {ARMS}")
    parser.add_argument("--seeds", default="0-2", help="such as 0-2 or 0,3,5")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--steps", type=int, default=0, help="instead of the epochs of the benchmark, to try it out")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results" / "accuracy")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "accuracy")
    parser.add_argument("--table", action="store_true", help="only show what has finished")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    arms = [arm for arm in arguments.arms.split(",") if arm]
    for arm in arms:
        if arm not in ("plain", "checkpoint"):
            bound_of(arm)
    console = Console()
    recipes = planned(arguments.net, arms, seeds_of(arguments.seeds))
    if arguments.steps:
        recipes = {name: replace(recipe, steps=arguments.steps) for name, recipe in recipes.items()}
    if not arguments.table:
        run_all(
            recipes,
            arguments.results,
            arguments.work,
            arguments.jobs,
            lambda name, what: print(f"{name}: {what}", flush=True),
        )
    files = {path.stem: json.loads(path.read_text()) for path in sorted(arguments.results.glob("*.json"))}
    console.print(table(arguments.net, arms, files))


if __name__ == "__main__":
    main()
