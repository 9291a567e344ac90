"""AC-GC's other claim: one adaptive run takes less time than a search for the one best fixed width.

    python bench/halving.py [--steps 312] [--seeds 3] [--json docs/results/halving.json]

The search is successive halving: one run per fixed width, all of them for an eighth of the steps, then the better half
of them up to a quarter, and so on, until one is left and trained to its end. "Better" is by the mean loss of the steps
since the last choice; of those within TOLERANCE of the best, fewer bits are better. A width of b bits is the step that
b bits have over 8 RMS of a tensor. All arms store with the same code, so that only the choice of the step differs. Time
is processor time of training, tests left out. Time to the same accuracy: until a test first shows the last accuracy of
the plain run less MARGIN, for the search with all that was spent on other widths before; none where no test does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from slimgrad.lab.machine import describe
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)
RMS_COVERED = 8.0  # by the levels of a width, from the least to the largest
PLAIN, SEARCH, ADAPTIVE = "plain", "search", ("noise:0.05", "acgc")
TOLERANCE = 0.02  # of the loss
MARGIN = 0.005  # of the accuracy
N_PARTS = 8  # of a run; it is tested after each
BASE = Recipe("resnet18", "fashion-mnist", batch=128, threads=1, channels_last=True, options={"width": 0.125})


class Timed:
    """A run in parts, with the processor time that they took."""

    def __init__(self, arm: str, seed: int, steps: int) -> None:
        self.run = Run(replace(BASE.for_arm(arm), seed=seed, steps=steps).filled())
        self.seconds = 0.0
        self.tests: list[tuple[float, float]] = []  # seconds so far, accuracy
        self.loss = 0.0  # mean of the steps since go_on() was last called

    def go_on(self, n_parts: int) -> Timed:
        """Train for so many parts of the run, and test after each."""
        before = self.run.done
        for _ in range(n_parts):
            start, until = time.process_time(), self.run.done + self.run.recipe.steps // N_PARTS
            while self.run.done < until:
                self.run.step()
            self.seconds += time.process_time() - start
            self.run.test()
            self.tests.append((self.seconds, self.run.history.test[-1]["accuracy"]))
        self.loss = statistics.fmean(point["loss"] for point in self.run.history.train if point["step"] > before)
        return self

    def figures(self, seconds_before: float = 0.0) -> dict[str, Any]:
        """Return what is reported, and end the run."""
        self.run.close()
        tests = [(seconds_before + seconds, accuracy) for seconds, accuracy in self.tests]
        ratio = self.run.history.saved_ratio or 1.0
        return {"seconds": tests[-1][0], "tests": tests, "accuracy": tests[-1][1], "ratio": ratio}


def searched(seed: int, steps: int, progress: Progress) -> dict[str, Any]:
    """Return the figures of successive halving over the widths."""
    runs = {bits: Timed(f"relative:{RMS_COVERED / 2 / 2**bits}", seed, steps) for bits in WIDTHS}
    n_parts, done, lost, rounds = 1, 0, 0.0, []
    while True:
        for timed in progress.track(runs.values(), description=f"seed {seed} widths {list(runs)}"):
            timed.go_on(n_parts - done)
        if len(runs) == 1:
            [(bits, timed)] = runs.items()
            return {**timed.figures(lost), "bits": bits, "rounds": rounds}
        chosen = better_half({bits: timed.loss for bits, timed in runs.items()})
        rounds.append({"losses": {bits: timed.loss for bits, timed in runs.items()}, "kept": chosen})
        lost += sum(timed.figures()["seconds"] for bits, timed in runs.items() if bits not in chosen)
        runs = {bits: runs[bits] for bits in chosen}
        done, n_parts = n_parts, 2 * n_parts


def better_half(losses: dict[int, float]) -> list[int]:
    """Return the widths to go on with: those as good as the best, the narrowest first, and then by loss."""
    good = (1 + TOLERANCE) * min(losses.values())
    order = sorted(losses, key=lambda bits: (0, bits) if losses[bits] <= good else (1, losses[bits]))
    return order[: len(losses) // 2]


def time_to(accuracy: float, tests: Sequence[tuple[float, float]]) -> float | None:
    """Return the seconds until a test first shows it."""
    return next((seconds for seconds, found in tests if found >= accuracy), None)


def arms_of_seed(seed: int, steps: int, progress: Progress) -> dict[str, dict[str, Any]]:
    found = {}
    for arm in progress.track((PLAIN, *ADAPTIVE), description=f"seed {seed} plain and adaptive"):
        found[arm] = Timed(arm, seed, steps).go_on(N_PARTS).figures()
    found[SEARCH] = searched(seed, steps, progress)
    wanted = found[PLAIN]["accuracy"] - MARGIN
    for figures in found.values():
        figures["seconds_to_accuracy"] = time_to(wanted, figures["tests"])
    return found


def table_of(runs: Sequence[dict[str, dict[str, Any]]], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for column in ("arm", "time / plain", "to plain's accuracy / plain", "ratio", "accuracy by seed", "bits found"):
        table.add_column(column)
    for arm in runs[0]:
        own, plain = [run[arm] for run in runs], [run[PLAIN] for run in runs]
        reached = [one["seconds_to_accuracy"] for one in own]
        times = [t / p["seconds_to_accuracy"] for t, p in zip(reached, plain, strict=True) if t is not None]
        whole = statistics.fmean(one["seconds"] / p["seconds"] for one, p in zip(own, plain, strict=True))
        missed = "" if len(times) == len(own) else f" ({len(times)} of {len(own)})"
        table.add_row(
            arm,
            f"{whole:.2f}",
            (f"{statistics.fmean(times):.2f}" if times else "-") + missed,
            f"{statistics.fmean(one['ratio'] for one in own):.1f}x",
            ", ".join(f"{100 * one['accuracy']:.1f} %" for one in own),
            ", ".join(str(one["bits"]) for one in own if "bits" in one),
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="One adaptive run against successive halving over fixed widths.")
    parser.add_argument("--steps", type=int, default=312)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with Progress(transient=True) as progress:
        runs = [arms_of_seed(seed, arguments.steps, progress) for seed in range(arguments.seeds)]
    Console(width=120).print(table_of(runs, f"{BASE.model} on {BASE.data}, {arguments.steps} steps of {BASE.batch}"))
    if arguments.json:
        result = {"machine": describe(), "steps": arguments.steps, "recipe": BASE.to_dict(), "seeds": runs}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
