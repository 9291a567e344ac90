"""What the controllers of adaptive bounds cost: a run that measures against one that takes the same bounds for nothing.

    python bench/controllers.py [--steps 500] [--only Noise] [--json docs/results/controllers.json]

Two copies of a ResNet-18, a quarter as wide, train on the same batches, step by step in turn. One is attached under the
bound; the other follows it, with the bounds that the first has set and no measurement of its own. So codes and bytes
are the same, and the ratio of their times is what measuring and deciding cost. Times are those of the process's one
thread, which other work on the machine disturbs little; the spread is that of ten parts of the run.
"""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

import slimgrad
from slimgrad.bounds.base import NOTHING, Request, State
from slimgrad.lab import data, machine, models
from slimgrad.lab.steps import seconds_of_step

BOUNDS = {"Noise": slimgrad.Noise(0.05), "Comet": slimgrad.Comet(), "AcGc": slimgrad.AcGc()}
N_PARTS = 10


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

    def __init__(self, model: nn.Module, bound: Any) -> None:
        self.model, self.criterion = model, nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        self.session = slimgrad.attach(model, self.criterion, bound=bound, optimizer=self.optimizer)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the seconds that the step took."""
        return seconds_of_step(self.model, self.criterion, self.optimizer, x, y)


def overhead(bound: Any, steps: int, batch: int, width: float) -> dict[str, float]:
    """Return time with the controller / time without, over all steps and over the parts of the run."""
    torch.manual_seed(0)
    model = models.build("resnet18", width=width, stem="small", classes=10, in_channels=1)
    follower = follower_of(bound)
    arms = Arm(copy.deepcopy(model), bound), Arm(model, follower)
    seconds: list[tuple[float, float]] = []
    for number, (x, y) in enumerate(data.batches(data.fashion_mnist("train"), batch, steps, 1)):
        arms[1].session.tuning.states[follower] = arms[0].session.tuning.states[bound]
        order = (0, 1) if number % 2 else (1, 0)  # whoever comes first finds colder caches
        taken = {arm: arms[arm].step(x, y) for arm in order}
        seconds.append((taken[0], taken[1]))
    parts = [seconds[i * steps // N_PARTS : (i + 1) * steps // N_PARTS] for i in range(N_PARTS)]
    ratios = [sum(one for one, _ in part) / sum(other for _, other in part) for part in parts]
    total = sum(one for one, _ in seconds) / sum(other for _, other in seconds)
    later = seconds[steps // N_PARTS :]
    settled = sum(one for one, _ in later) / sum(other for _, other in later)
    return {"ratio": total, "after the first tenth": settled, "smallest part": min(ratios), "largest part": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the controllers of adaptive bounds cost.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--only", choices=BOUNDS, action="append")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in arguments.only or BOUNDS:
        found[name] = overhead(BOUNDS[name], arguments.steps, arguments.batch, arguments.width)
        print(name, ", ".join(f"{key} {value:.3f}" for key, value in found[name].items()), flush=True)
    if arguments.json:
        how = {"steps": arguments.steps, "batch": arguments.batch, "width": arguments.width}
        record = {"machine": machine.describe(), **how, "bounds": found}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
