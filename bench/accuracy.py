"""Does training under a noise budget reach what plain training reaches? CIFAR-10 and text, the same seeds in all arms.

    nice python bench/accuracy.py --jobs 2                     the whole benchmark, in the order of lab/benchmark.py
    nice python bench/accuracy.py --net gpt --arms plain,noise:0.05 --seeds 0-2
    python bench/accuracy.py --table                           docs/results/accuracy.md of what has finished, no runs

One thread and one process per run; every finished run is one JSON file in --results, and is not repeated. A stop at any
moment loses at most a minute: the same command goes on. The whole takes about eight hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from slimgrad.errors import ConfigError, SlimgradError
from slimgrad.lab import benchmark, compare_table, pages
from slimgrad.lab.compare import rows_of
from slimgrad.lab.fleet import run_all

ROOT = Path(__file__).resolve().parents[1]


def seeds_of(text: str) -> list[int]:
    """Return the seeds of "0-2" or "0,3,5"."""
    first, dash, last = text.partition("-")
    try:
        return list(range(int(first), int(last) + 1)) if dash else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"expected --seeds such as 0-2 or 0,3,5, got {text!r}") from error


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Accuracy of training under a noise budget against plain training.")
    parser.add_argument("--net", action="append", choices=benchmark.NETS, help="repeatable; default: all")
    parser.add_argument("--arms", help="plain, checkpoint, bounds or system:NAME, by commas; default: the benchmark's")
    parser.add_argument("--seeds", help="such as 0-2 or 0,3,5; default: the benchmark's")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--steps", type=int, default=0, help="instead of those of the benchmark, to try it out")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results" / "accuracy")
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "accuracy")
    parser.add_argument("--table", action="store_true", help="only write and show what has finished")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    nets = arguments.net or list(benchmark.NETS)
    arms = arguments.arms.split(",") if arguments.arms else None
    seeds = seeds_of(arguments.seeds) if arguments.seeds else None
    recipes = benchmark.planned(nets, arms, seeds, arguments.steps)
    if not arguments.table:
        tell = lambda name, what: print(f"{name}: {what}", flush=True)  # noqa: E731
        run_all(recipes, arguments.results, arguments.work, arguments.jobs, tell)
    results = [json.loads(path.read_text()) for path in sorted(arguments.results.glob("*-seed*.json"))]
    if not results:
        return
    (arguments.results.parent / f"{arguments.results.name}.md").write_text(benchmark.markdown(results))
    for net in nets:
        own = [result for result in results if benchmark.net_of(result) == net]
        if own:
            Console(width=120).print(compare_table.table(rows_of(own), f"{net} on {own[0]['recipe']['data']}"))
            pages.write(arguments.work / f"{net}.html", own)


if __name__ == "__main__":
    try:
        main()
    except SlimgradError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
