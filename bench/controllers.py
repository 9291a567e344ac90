"""What the controllers of adaptive bounds cost: a run that measures against one that takes the same bounds for nothing.

    python bench/controllers.py [--only Noise] [--model gpt] [--width 1.0] [--json docs/results/controllers.json]

Two copies of a network train on the same batches, step by step in turn: a ResNet-18 a quarter as wide, or the GPT of
bench/noise.py, of which a batch is a quarter as many rows of 128 tokens (with --width 1.0 it is 256 wide). One is
attached under the bound; the other follows it, with the bounds that the first has set and no measurement of its own. So
codes and bytes are the same, and the ratio of their times is what measuring and deciding cost. Times are those of the
process's one thread, which other work on the machine disturbs little. Whichever network is made first is slower by 0.1
to 0.5 %, for where it lies in memory, so all is run either way round; the spread is that of ten parts of the run.
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
N_PARTS = 10
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


def overhead(bound: Any, model: str, steps: int, batch: int, width: float) -> dict[str, float]:
    """Return time with the controller / time without, over all steps and over the parts of the run."""
    runs = [seconds_of(bound, is_first, model, steps, batch, width) for is_first in (True, False)]
    both = [(one + more, other + yet) for (one, other), (more, yet) in zip(*runs, strict=True)]
    parts = [ratio_of(both[i * steps // N_PARTS : (i + 1) * steps // N_PARTS]) for i in range(N_PARTS)]
    return {
        "ratio": ratio_of(both),
        "made first": ratio_of(runs[0]),
        "made last": ratio_of(runs[1]),
        "after the first tenth": ratio_of(both[steps // N_PARTS :]),
        "smallest part": min(parts),
        "largest part": max(parts),
    }


def ratio_of(seconds: list[tuple[float, ...]]) -> float:
    return sum(one for one, _ in seconds) / sum(other for _, other in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controllers of adaptive bounds cost.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--model", choices=("resnet18", "gpt"), default="resnet18")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--only", choices=BOUNDS, action="append")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in arguments.only or BOUNDS:
        found[name] = overhead(BOUNDS[name], arguments.model, arguments.steps, arguments.batch, arguments.width)
        print(name, ", ".join(f"{key} {value:.3f}" for key, value in found[name].items()), flush=True)
    if arguments.json:
        how = {"model": arguments.model, "steps": arguments.steps, "batch": arguments.batch, "width": arguments.width}
        record = {"machine": machine.describe(), **how, "bounds": found}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
