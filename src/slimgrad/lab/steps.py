"""How long a training step takes: plain, slim and checkpointed, interleaved in one process.

The machine's speed drifts by more than the arms differ, so they take turns, and every ratio is taken within one round.
Plain PyTorch can have huge pages too (THP_MEM_ALLOC_ENABLE=1, read when it first allocates): that comparison is made in
a process of its own, again interleaved.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import nn

from slimgrad.lab.arms import ARMS, Material, Setup, Step, in_fresh_process, setup_of
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES

ROUNDS = 7
WARM_UP = 2  # rounds: the first steps map memory and learn roles


class Ratio(NamedTuple):
    """Time relative to plain in the same round: the middle, and the quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds per step, by arm, one per round."""

    seconds: dict[str, list[float]]

    def median(self, arm: str) -> float:
        """Return the median of the seconds per step."""
        return statistics.median(self.seconds[arm])

    def ratio(self, arm: str) -> Ratio:
        """Return the time of the arm as a multiple of plain."""
        ratios = [a / b for a, b in zip(self.seconds[arm], self.seconds["plain"], strict=True)]
        if len(ratios) < 2:
            return Ratio(ratios[0], ratios[0], ratios[0])
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return Ratio(median, low, high)


def measure(setup: Setup, rounds: int = ROUNDS, arms: tuple[str, ...] = ARMS, warm_up: int = WARM_UP) -> Times:
    """Return the times of the arms; they take turns, and which of them begins changes from round to round."""
    material = Material(setup)
    steps = {arm: Step(material, arm) for arm in arms}
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for i in range(warm_up + rounds):
        first = i % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            gc.collect()
            start = time.perf_counter()
            steps[arm]()
            if i >= warm_up:
                seconds[arm].append(time.perf_counter() - start)
    for step in steps.values():
        if step.session is not None:
            step.session.detach()
    return Times(seconds)


def measure_with_huge_pages(setup: Setup, rounds: int = ROUNDS, arms: tuple[str, ...] = ("plain", "slim")) -> Times:
    """Return the times in a process where torch's own allocator asks for huge pages."""
    printed = in_fresh_process(__name__, setup, str(rounds), ",".join(arms), **ASK_FOR_HUGE_PAGES)
    return Times(**json.loads(printed))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(setup_of(sys.argv[3:]), int(sys.argv[1]), tuple(sys.argv[2].split(","))))))


def seconds_of_step(
    model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> float:
    """Train for one step and return the processor time that it took, which other work disturbs little."""
    start = time.process_time()
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    return time.process_time() - start
