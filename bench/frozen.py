"""COMET's own ablation: does its bound have to adapt? Frozen at iteration 1, 100 and 200 against adaptive, on CIFAR-10.

    python bench/frozen.py [--steps 800] [--seeds 2] [--json docs/results/frozen.json]

A small ResNet-18 is trained from the same seeds, plain, with Comet's adaptive bound, and with the bounds that Comet has
at one iteration for the rest of the run. A frozen run gets the adaptive run's average ratio over the inputs of convs:
its bounds are scaled by one factor, which is found on weights that the adaptive run passed through. All runs of a seed
see the same batches. Reported: loss over the last tenth of the steps, accuracy on all test images, the ratio reached.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import slimgrad
from slimgrad.bounds.base import NOTHING, Reading, Request, RoleBound, Site, State
from slimgrad.bounds.covered import Covered
from slimgrad.lab import data, models
from slimgrad.lab.machine import describe

BATCH, FROZEN_AT, WINDOW = 64, (1, 100, 200), 100
PASSED_THROUGH = (0.25, 0.5, 0.75, 1.0)  # shares of the adaptive run at which its weights are kept for the calibration


@dataclass(frozen=True)
class FrozenComet:
    """Comet up to one iteration, and then what it had there, times a factor."""

    comet: slimgrad.Comet
    at_step: int
    factor: float = 1.0
    needs_optimizer: ClassVar[bool] = True

    def start(self) -> State:
        return {**self.comet.start(), "is_frozen": False}

    def at(self, site: Site, state: State) -> RoleBound:
        covered = self.comet.at(site, state)
        if not state["is_frozen"] or not isinstance(covered.bound, slimgrad.Absolute):
            return covered
        return Covered(slimgrad.Absolute(covered.bound.eps(1.0) * self.factor), covered.words)

    def wants(self, step: int, state: State) -> Request:
        if step == self.at_step:
            return Request(gradients=None)
        return NOTHING if state["is_frozen"] else self.comet.wants(step, state)

    def update(self, state: State, reading: Reading) -> State:
        return {**self.comet.update(state, reading), "is_frozen": reading.step >= self.at_step}

    def noise(self, state: State) -> float | None:
        return None


class Run:
    """One training. `bound` None is plain."""

    def __init__(self, source: data.Source, seed: int, bound: Any = None) -> None:
        torch.manual_seed(seed)
        self.source, self.seed = source, seed
        self.model = models.build("resnet18", width=0.125, stem="small")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        self.session = None if bound is None else slimgrad.attach(self.model, bound=bound, optimizer=self.optimizer)
        self.losses: list[float] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def step(self, number: int) -> None:
        x, y = self.source.batch(number, BATCH, self.seed)
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def train(self, steps: int, progress: Progress, name: str) -> Run:
        keep = {max(1, round(share * steps)) for share in PASSED_THROUGH}
        for number in progress.track(range(steps), description=f"seed {self.seed} {name}"):
            self.step(number)
            if number + 1 in keep:
                self.weights.append(copy.deepcopy(self.model.state_dict()))
        return self

    def accuracy(self) -> float:
        """Return the share of test images that are recognised."""
        self.model.eval()
        with torch.no_grad():
            right = [int((self.model(x).argmax(1) == y).sum()) for x, y in self.source.held_out(500)]
        self.model.train()
        return sum(right) / 10_000

    def figures(self) -> dict[str, float]:
        """Return what is reported of the run, and end it."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        ratio = 1.0 if self.session is None else conv_ratio(self.session)
        if self.session is not None:
            self.session.detach()
        return {"loss": statistics.fmean(last), "accuracy": self.accuracy(), "ratio": ratio}


def conv_ratio(session: slimgrad.Session) -> float:
    """Return original / stored bytes over the inputs of convolutions, which is what COMET covers."""
    coded = session.report().by_role()["conv input"]
    return coded.nbytes_in / coded.nbytes_out


def factor_for(adaptive: Run, frozen: FrozenComet, state: dict[str, Any], wanted: float) -> float:
    """Return the factor at which frozen bounds store as much as the adaptive ones did, by bisection."""
    low, high = math.log(1 / 256), math.log(256)
    for _ in range(9):
        middle = (low + high) / 2
        if ratio_on(adaptive, replace(frozen, factor=math.exp(middle)), state) < wanted:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def ratio_on(adaptive: Run, bound: FrozenComet, state: dict[str, Any]) -> float:
    """Return that ratio over one forward at each of the weights that the adaptive run had."""
    probe = Run(adaptive.source, adaptive.seed, bound)
    assert probe.session is not None
    probe.session.load_state_dict({**state, "bounds": {repr(bound): state["bounds"][repr(replace(bound, factor=1.0))]}})
    for number, weights in enumerate(adaptive.weights):
        probe.model.load_state_dict(weights)
        probe.model(adaptive.source.batch(number, BATCH, adaptive.seed).x).sum().backward()
    ratio = conv_ratio(probe.session)
    probe.session.detach()
    return ratio


def runs_of_seed(source: data.Source, seed: int, steps: int, progress: Progress) -> dict[str, dict[str, float]]:
    comet = slimgrad.Comet(window=WINDOW)
    found = {"plain": Run(source, seed).train(steps, progress, "plain").figures()}
    adaptive = Run(source, seed, comet).train(steps, progress, "adaptive")
    found["adaptive"] = adaptive.figures()
    for at_step in FROZEN_AT:
        frozen = FrozenComet(comet, at_step)
        start = Run(source, seed, frozen)
        assert start.session is not None
        for number in range(at_step):
            start.step(number)
        state = start.session.state_dict()
        start.session.detach()
        fitted = replace(frozen, factor=factor_for(adaptive, frozen, state, found["adaptive"]["ratio"]))
        run = Run(source, seed, fitted).train(steps, progress, f"frozen at {at_step}")
        found[f"frozen at {at_step}"] = {**run.figures(), "factor": fitted.factor}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="COMET's bound, adaptive against frozen.")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    source = data.load("cifar10")
    with Progress(transient=True) as progress:
        runs = [runs_of_seed(source, seed, arguments.steps, progress) for seed in range(arguments.seeds)]
    table = Table(
        title=f"small ResNet-18, CIFAR-10, {arguments.steps} steps of {BATCH}", title_justify="left", box=None
    )
    for column in ("bound", "ratio", "last losses", "test accuracy, by seed"):
        table.add_column(column)
    for arm in runs[0]:
        ratio, loss = (statistics.fmean(run[arm][key] for run in runs) for key in ("ratio", "loss"))
        accuracies = ", ".join(f"{100 * run[arm]['accuracy']:.1f} %" for run in runs)
        table.add_row(arm, f"{ratio:.1f}x", f"{loss:.3f}", accuracies)
    Console().print(table)
    if arguments.json:
        result = {"machine": describe(), "steps": arguments.steps, "batch": BATCH, "window": WINDOW, "seeds": runs}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
