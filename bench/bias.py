"""Do errors average out over batches? The mean error of many batches, beside the mean gradient and the error of one.

    python bench/bias.py [--model resnet18_cifar] [--steps 300] [--batches 80] [--json docs/results/bias.json]
    python bench/bias.py --run out/train                      late in a training: from the checkpoint in its folder

A network of bench/noise.py is trained under Noise(0.05); then its weights stay as they are, and the exact and the
compressed gradient of one batch after the other are compared. Batches are split in two halves: a product of their
means is free of what differs from batch to batch, so it shows the true gradient, and the part of the error that does
not average out, however few batches there are.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from noise import CIFAR, OPTIONS, batches
from torch import nn

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab import checkpoint, machine, models
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run
from slimgrad.lab.train import CHECKPOINT
from slimgrad.session import Session

E2 = 0.05


def gradient(model: nn.Module, criterion: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradient of all parameters as one vector."""
    parts = torch.autograd.grad(criterion(model(x), y), list(model.parameters()))
    return torch.cat([part.flatten() for part in parts]).double()


def shares(session: Session, model: nn.Module, criterion: nn.Module, data: list) -> dict[str, float]:
    """Return energies as shares of the mean energy of one batch's gradient."""
    gradients, errors = (torch.zeros(2, sum(p.numel() for p in model.parameters())).double() for _ in range(2))
    energy = noise = 0.0
    for number, (x, y) in enumerate(data):
        with session.paused():
            exact = gradient(model, criterion, x, y)
        error = gradient(model, criterion, x, y) - exact
        energy, noise = energy + float(exact @ exact), noise + float(error @ error)
        gradients[number % 2] += exact
        errors[number % 2] += error
    one = energy * len(data) / 4.0  # of two sums over half of the batches each, if all were alike
    true, bias = float(gradients[0] @ gradients[1]) / one, float(errors[0] @ errors[1]) / one
    return {"noise": noise / energy, "true gradient": true, "bias": bias, "bias / true gradient": bias / true}


def fixed(session: Session) -> None:
    """Let bounds stay as they are from here on."""
    session.tuning.meter.end()
    session.tuning.begin_step = lambda step: None  # pyright: ignore[reportAttributeAccessIssue]


def of_run(folder: Path, n_batches: int) -> dict[str, Any]:
    """Return the shares in a training that was saved, with its own bounds, on the batches that come next."""
    state = checkpoint.load_run(folder / CHECKPOINT)
    run = Run(Recipe(**state["recipe"]))
    run.load_state_dict(state)
    if run.session is None:
        raise ConfigError(f"expected a run with a bound, got {run.recipe}; name the folder of another")
    fixed(run.session)
    data = [run.fitted_batch(run.done + number, run.recipe.batch, run.recipe.seed) for number in range(n_batches)]
    found = shares(run.session, run.model, run.criterion, data)
    return {"run": str(run.recipe), "done": run.done, "of": run.recipe.steps, "batches": n_batches, **found}


def of_short_training(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the shares after some steps under Noise(0.05)."""
    torch.manual_seed(0)
    name = arguments.model.removesuffix(CIFAR)
    model, criterion = models.build(name, **OPTIONS[arguments.model]), models.criterion(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training, _ = batches(arguments.model, arguments.batch, arguments.steps + arguments.batches)
    training = iter(training)
    with slimgrad.attach(model, criterion, bound=slimgrad.Noise(E2), min_bytes=1024) as session:
        for x, y in itertools.islice(training, arguments.steps):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        fixed(session)
        how = {name: getattr(arguments, name) for name in ("model", "steps", "batches", "batch")}
        return {**how, **shares(session, model, criterion, list(training))}


def main() -> None:
    parser = argparse.ArgumentParser(description="Do errors average out over batches?")
    parser.add_argument("--model", choices=[name for name in OPTIONS if name != "gpt"], default="resnet18_cifar")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--run", type=Path, help="the folder of slimgrad train, with its checkpoint")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = of_run(arguments.run, arguments.batches) if arguments.run else of_short_training(arguments)
    print("\n".join(f"{key:24s} {value:{'.5f' if isinstance(value, float) else ''}}" for key, value in found.items()))
    if arguments.json:
        record = {"machine": machine.describe(), **found}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
