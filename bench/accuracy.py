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
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slimgrad.errors import ConfigError
from slimgrad.lab import compare_table, pages
from slimgrad.lab.compare import planned, rows_of
from slimgrad.lab.fleet import run_all
from slimgrad.lab.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
BASE = Recipe("resnet18", "cifar10", epochs=8, batch=128, test_every=390, audits=12, threads=1, channels_last=True)
NETS = {
    "resnet18": replace(BASE, options={"width": 0.25}),
    "vgg16_bn": replace(BASE, model="vgg16_bn", options={"width": 0.25, "dropout": 0.0}, lr=0.05),
    "alexnet": replace(BASE, model="alexnet", options={"width": 0.5}),
    "resnet50": replace(BASE, model="resnet50", options={"width": 0.125}),
    "gpt": Recipe(
        "gpt", "sotu", size=128, steps=800, batch=16, lr=2e-3, audits=8, test_every=200, test_examples=2048, threads=1,
        options={"width": 96, "depth": 4, "heads": 4, "dropout": 0.0},
    ),
}  # fmt: skip
ARMS = "plain,noise:0.05,noise:0.2"


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
    recipe = replace(NETS[arguments.net], steps=arguments.steps or NETS[arguments.net].steps)
    recipes = planned(recipe, arguments.arms.split(","), seeds_of(arguments.seeds), f"{arguments.net}-")
    if not arguments.table:
        tell = lambda name, what: print(f"{name}: {what}", flush=True)  # noqa: E731
        run_all(recipes, arguments.results, arguments.work, arguments.jobs, tell)
    paths = sorted(arguments.results.glob(f"{arguments.net}-*-seed*.json"))
    results = [json.loads(path.read_text()) for path in paths]
    if results:
        Console(width=120).print(compare_table.table(rows_of(results), f"{arguments.net} on {recipe.data}"))
        pages.write(arguments.work / f"{arguments.net}.html", results)


if __name__ == "__main__":
    main()
