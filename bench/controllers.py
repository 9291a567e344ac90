"""What the controllers of adaptive bounds cost: a run that measures against one that takes the same bounds for nothing.

    python bench/controllers.py [--only Noise] [--model gpt] [--width 1.0] [--rounds 3] [--json FILE]

Two copies of a network train on the same batches, step by step in turn: a ResNet-18 a quarter as wide, or the GPT of
bench/noise.py, of which a batch is a quarter as many rows of 128 tokens (with --width 1.0 it is 256 wide). One is
attached under the bound; the other follows it, with the bounds that the first has set and no measurement of its own. So
codes and bytes are the same, and the ratio of their times is what measuring and deciding cost. Times are those of the
process's one thread, which other work on the machine disturbs little. Two networks that do the same differ by up to
0.7 %, for where they lie in memory, and whichever is made first is slower on average. So all is run either way round,
several times, and the spread is that of these runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import noise
import torch
from torch import nn

import slimgrad
from slimgrad.bounds.base import NOTHING, Request, State
from slimgrad.lab import data, machine, models
from slimgrad.lab.steps import seconds_of_step

BOUNDS = {"Noise": slimgrad.Noise(0.05), "Comet": slimgrad.Comet(), "AcGc": slimgrad.AcGc()}
GPT_WIDTH = 256  # at --width 1.0


def follower_of(bound: Any) -> Any:
    """Return the same bound, but one that measures nothing: it goes by the state that it is given.

    It is not Fixed: what a site codes under a fixed bound is looked up once and never again.
    """

    class Follower(type(bound)):
        def wants(self, step: int, state: State) -> Request:
            return NOTHING

    return Follower(**{one.name: getattr(bound, one.name) for one in fields(bound)})


class Arm:
    """One of the two trainings."""

    def __init__(self, run: noise.Setup, bound: Any) -> None:
        self.run = run
        self.session = slimgrad.attach(run.model, run.criterion, bound=bound, optimizer=run.optimizer)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the seconds that the step took."""
        return seconds_of_step(self.run.model, self.run.criterion, self.run.optimizer, x, y)


def setup(model: str, batch: int, steps: int, width: float) -> noise.Setup:
    """Return a new training, the same each time."""
    if model == "gpt":
        return noise.setup(model, batch, steps, 0, width=round(width * GPT_WIDTH))
    torch.manual_seed(0)
    network = models.build(model, width=width, stem="small", classes=10, in_channels=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    images = data.batches(data.fashion_mnist("train"), batch, steps, 1)
    return noise.Setup(network, nn.CrossEntropyLoss(), optimizer, images, [])


def seconds_of(bound: Any, is_first: bool, model: str, steps: int, batch: int, width: float) -> list[tuple[float, ...]]:
    """Return the seconds of each step with the controller and without; it is made first, or last."""
    follower = follower_of(bound)
    made = {one: Arm(setup(model, batch, steps, width), one) for one in ((bound, follower)[:: 1 if is_first else -1])}
    arms, seconds = (made[bound], made[follower]), []
    for number, (x, y) in enumerate(arms[0].run.training):
        arms[1].session.tuning.states[follower] = arms[0].session.tuning.states[bound]
        order = (0, 1) if number % 2 else (1, 0)  # whoever comes first finds colder caches
        taken = {arm: arms[arm].step(x, y) for arm in order}
        seconds.append((taken[0], taken[1]))
    return seconds


def overhead(bound: Any, rounds: int, model: str, steps: int, batch: int, width: float) -> dict[str, float]:
    """Return time with the controller / time without, over all runs and of the single ones."""
    first, last = (
        [seconds_of(bound, is_first, model, steps, batch, width) for _ in range(rounds)] for is_first in (True, False)
    )
    ratios = [ratio_of(run) for run in first + last]
    return {
        "ratio": ratio_of(*first, *last),
        "made first": ratio_of(*first),
        "made last": ratio_of(*last),
        "after the first tenth": ratio_of(*(run[steps // 10 :] for run in first + last)),
        "smallest run": min(ratios),
        "largest run": max(ratios),
        "runs": len(ratios),
    }


def ratio_of(*runs: list[tuple[float, ...]]) -> float:
    pairs = [pair for run in runs for pair in run]
    return sum(one for one, _ in pairs) / sum(other for _, other in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controllers of adaptive bounds cost.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--model", choices=("resnet18", "gpt"), default="resnet18")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3, help="how often both ways round are run")
    parser.add_argument("--only", choices=BOUNDS, action="append")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    how = (arguments.model, arguments.steps, arguments.batch, arguments.width)
    for name in arguments.only or BOUNDS:
        found[name] = overhead(BOUNDS[name], arguments.rounds, *how)
        print(name, ", ".join(f"{key} {value:.4g}" for key, value in found[name].items()), flush=True)
    if arguments.json:
        names = ("model", "steps", "batch", "width")
        record = {"machine": machine.describe(), **{name: getattr(arguments, name) for name in names}, "bounds": found}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
