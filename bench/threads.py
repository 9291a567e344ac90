"""Whose threads should run the kernels? A training step with torch's own pool, with a second one, and with none.

    python bench/threads.py [--model resnet18] [--batch 16] [--rounds 9] [--json docs/results/threads.json]

torch's pool     the OpenMP runtime that torch has loaded; what slimgrad uses
a second pool    another OpenMP runtime in the same process, whose idle threads spin beside torch's
short-lived      threads started for one call and joined after it; what is used where no pool is found

The arms take turns in one process, and each ratio is taken to the first arm within one round. docs/decisions/0004.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import glob
import json
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slimgrad.kernels import library
from slimgrad.lab.arms import Material, Setup, Step
from slimgrad.lab.machine import describe

WARM_UP = 2


def pools() -> dict[str, int | None]:
    """Return the address of GOMP_parallel of each arm; None for threads of our own."""
    found: dict[str, int | None] = {"torch's pool": library.pool_of_torch()}
    for path in glob.glob("/usr/lib*/*/libgomp.so.1")[:1]:  # the system's own, beside torch's
        found["a second pool"] = ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value
    found["short-lived"] = None
    return found


def seconds_by_turns(setup: Setup, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per step of each arm, one per round."""
    step, arms = Step(Material(setup), "slim"), pools()
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(WARM_UP + rounds):
        for arm, address in arms.items():
            library.library().slimgrad_use_pool(address)
            gc.collect()
            start = time.perf_counter()
            step()
            if number >= WARM_UP:
                seconds[arm].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Whose threads should run the kernels?")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    setup = Setup(model=arguments.model, batch=arguments.batch).filled()
    seconds = seconds_by_turns(setup, arguments.rounds)
    first = next(iter(seconds.values()))
    table = Table(title=f"time of a step, {setup}", title_justify="left", box=None)
    for column in ("threads", "seconds", "x torch's pool", "quartiles"):
        table.add_column(column)
    for arm, taken in seconds.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(taken, first, strict=True)], n=4)
        table.add_row(arm, f"{statistics.median(taken):.3f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    Console().print(table)
    if arguments.json:
        result = {"machine": describe(), "setup": str(setup), "seconds": seconds}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
