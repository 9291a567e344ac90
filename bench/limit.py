"""A memory limit that kills: plain ResNet-50 dies at batch B, slim trains 20 steps at 4 B, to the losses of a free run.

    python bench/limit.py [--model resnet50] [--batch 8] [--limit 1350] [--steps 20] [--json docs/results/limit.json]

And COMET's last table: images per second at the largest batch, a power of two that `fit_batch` finds, in the same
memory. CPU seconds are those of all threads and hardly depend on what else the machine does. The measuring code is
slimgrad.lab.limit.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from slimgrad.lab import machine
from slimgrad.lab.arms import Setup
from slimgrad.lab.limit import Found, Outcome, compare

MIB = 1 << 20


def line(name: str, outcome: Outcome) -> str:
    """Return one row of the table."""
    head = f"{name:24}{outcome.batch:6}"
    if outcome.is_killed:
        return f"{head}   killed after {len(outcome.losses)} steps"
    speeds = f"{outcome.examples_per_second:8.2f}{outcome.examples_per_cpu_second:12.2f}"
    return f"{head}{len(outcome.losses):7}{outcome.peak / MIB:10,.0f} MiB{speeds}{outcome.losses[-1]:12.6f}"


def show(found: Found) -> None:
    """Print the table and what it says."""
    print(f"{'':24}{'batch':>6}{'steps':>7}{'resident':>14}{'/s':>8}{'/CPU s':>12}{'last loss':>12}")
    print(line("plain, limited", found.plain_dies))
    print(line("plain, limited", found.plain))
    print(line("slim, limited", found.slim))
    print(line("slim, no limit", found.slim_unlimited))
    print(line("plain, no limit", found.plain_unlimited))
    free = found.slim_unlimited.losses  # fewer, where somebody ended that run
    same = "bit for bit those" if found.slim.losses[: len(free)] == free else "NOT those"
    print(f"slim trains at {found.gain:g} times the batch that plain dies at;", end=" ")
    print(f"its losses are {same} of {len(free)} steps without a limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=8, help="that plain should die at")
    parser.add_argument("--size", type=int, help="of the images")
    parser.add_argument("--bound", default="relative:0.5")
    parser.add_argument("--limit", type=int, default=1350, help="MiB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    setup = Setup(arguments.model, arguments.batch, arguments.size, arguments.bound, threads=arguments.threads)
    found = compare(setup, arguments.limit * MIB, arguments.steps, lambda text: print(text, flush=True))
    show(found)
    if arguments.json:
        result = {"machine": machine.describe(), "setup": asdict(setup), "limit": arguments.limit * MIB}
        arguments.json.write_text(json.dumps({**result, **asdict(found)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
