"""`make demo`: train a small network on the shipped images and show the codec table on what it saves for backward."""

from __future__ import annotations

import torch
from rich.console import Console

from slimgrad.lab import codec_bench, codec_table, machine
from slimgrad.lab.recorded import SmallNet, record, train

STEPS, BATCH = 60, 128


def main(steps: int = STEPS, batch: int = BATCH, rounds: int = 5) -> None:
    """Run the demo and print it; about half a minute on two cores."""
    console = Console()
    torch.manual_seed(0)
    model = SmallNet()
    console.print(f"slimgrad {machine.describe()['slimgrad']}, kernels: {machine.kernels_in_use()}")
    console.print(f"training a small network on Fashion-MNIST, {steps} steps of {batch} images ...")
    losses = train(model, steps, batch)
    console.print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; recording what its blocks save for backward ...\n")
    rows = list(codec_bench.measure(record(model, batch), steps=(1.0,), rounds=rounds))
    console.print(codec_table.table(rows))


if __name__ == "__main__":
    main()
