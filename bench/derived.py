"""What it brings to derive results of norms and activations from their coded input, instead of storing them too.

    python bench/derived.py [--steps 300] [--json docs/results/derived.json]

Each network trains in three copies on the same batches, step by step in turn: plain, under Noise(0.05) with everything
stored, and under Noise(0.05) as it is. Bytes are means over the last half of the run. Times are those of the process's
one thread over that half, as a ratio to plain's, with the smallest and largest of ten parts; the rest goes to learning.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch

import slimgrad
from slimgrad import Compress, Noise
from slimgrad.lab import data, machine, models
from slimgrad.lab.steps import seconds_of_step


class Net(NamedTuple):
    data: str
    size: int
    batch: int
    options: dict[str, Any]


NETS = {
    "resnet18": Net("cifar10", 32, 64, {"width": 0.25, "stem": "small", "classes": 10}),
    "vgg16_bn": Net("cifar10", 32, 64, {"width": 0.25, "hidden": 128, "pool": 1, "dropout": 0.0, "classes": 10}),
    "gpt": Net("sotu", 128, 16, {"width": 128, "depth": 3, "heads": 4, "context": 128}),
}
POLICIES = {"plain": None, "all stored": Compress(derive=False), "derived": Compress()}
N_PARTS = 10


class Arm:
    """One of the three trainings."""

    def __init__(self, name: str, model: torch.nn.Module, policy: Compress | None) -> None:
        self.model, self.criterion = model, models.criterion(name)
        self.optimizer = (
            torch.optim.AdamW(model.parameters(), lr=1e-3)
            if name == "gpt"
            else torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        )
        self.session = policy and slimgrad.attach(model, self.criterion, bound=Noise(0.05), policy=policy)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the seconds that the step took."""
        return seconds_of_step(self.model, self.criterion, self.optimizer, x, y)

    @property
    def saved(self) -> tuple[int, int]:
        """Original and stored bytes of all steps so far."""
        total = self.session.report().snapshot.total if self.session else None
        return (total.saved_in, total.saved_out) if total else (0, 0)


class Row(NamedTuple):
    net: str
    arm: str
    saved_ratio: float
    noise: float  # in one audit at the end
    time: float  # of plain's
    smallest: float
    largest: float


def run(name: str, steps: int) -> list[Row]:
    """Train the three copies and return what each took."""
    torch.manual_seed(0)
    model = models.build(name, **NETS[name].options)
    arms = {arm: Arm(name, copy.deepcopy(model), policy) for arm, policy in POLICIES.items()}
    source, seconds, before = data.load(NETS[name].data, size=NETS[name].size), {arm: [] for arm in arms}, {}
    for number in range(steps):
        x, y = source.batch(number, NETS[name].batch, 0)
        turn = number % len(arms)
        for arm in [*arms][turn:] + [*arms][:turn]:  # whoever comes first finds colder caches
            seconds[arm].append(arms[arm].step(x, y))
        if number + 1 == steps // 2:
            before = {arm: one.saved for arm, one in arms.items()}
    last = source.batch(steps, NETS[name].batch, 0)
    return [_row(name, arm, one, before[arm], last, seconds) for arm, one in arms.items()]


def _row(name: str, arm: str, one: Arm, before: tuple[int, int], last: Any, seconds: dict[str, list[float]]) -> Row:
    steps = len(seconds[arm])
    size = steps // 2 // N_PARTS
    parts = [slice(start, start + size) for start in range(steps - N_PARTS * size, steps, size)]
    times = [sum(seconds[arm][part]) / sum(seconds["plain"][part]) for part in parts]
    ratio, noise = 1.0, 0.0
    if one.session:
        (now_in, now_out), (then_in, then_out) = one.saved, before
        ratio = (now_in - then_in) / (now_out - then_out)
        noise = one.session.audit(lambda: one.criterion(one.model(last[0]), last[1])).noise
    return Row(name, arm, ratio, noise, statistics.median(times), min(times), max(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=NETS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in arguments.net or NETS:
        for row in run(name, arguments.steps):
            print(
                f"{row.net:10} {row.arm:11} saved {row.saved_ratio:5.2f}x  noise {row.noise:.4f}  "
                f"time {row.time:.3f} [{row.smallest:.3f}-{row.largest:.3f}]",
                flush=True,
            )
            rows.append(row)
    if arguments.json:
        record = {"machine": machine.describe(), "steps": arguments.steps, "rows": [row._asdict() for row in rows]}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
