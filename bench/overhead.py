"""What slimgrad's Python costs per saved tensor, in microseconds.

    python bench/overhead.py [--json FILE]

left alone    chains of `sin` on tiny tensors: plain, with identity hooks, and attached. What hooks add is the
              difference to plain; slimgrad's share is compared with that of identity hooks in the same run.
coded         chains of `gelu`, each of which saves one tensor that is coded: what pack and unpack add, and how much of
              that one call of the codec's encode and one of its decode take on a tensor of that size.

All variants take turns, and each round gives one difference; figures are medians and quartiles over rounds. Time is the
processor time of the thread, so that other work on the machine counts only by what it does to caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import slimgrad
from slimgrad.lab import machine

N_SAVES, N_CODED = 400, 100
WARM_UP, ROUNDS = 3, 61
MICRO = 1e6


class Chain(nn.Module):
    """Applies one function again and again; every call saves one tensor."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], n: int) -> None:
        super().__init__()
        self.function, self.n = function, n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.n):
            x = self.function(x)
        return x


class Identity(nn.Module):
    """The same under hooks that do nothing but detach."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
            return self.inner(x)


class Figure(NamedTuple):
    """Median and quartiles over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        low, median, high = statistics.quantiles(values, n=4)
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}-{self.high:.1f})"


def added_by_turns(variants: Mapping[str, nn.Module], x: torch.Tensor, n: int) -> dict[str, list[float]]:
    """Return microseconds per save of forward and backward beyond the variant "plain", round for round."""
    rounds: list[dict[str, float]] = []
    for _ in range(WARM_UP + ROUNDS):
        rounds.append({})
        for name, model in variants.items():
            start = time.thread_time()
            model(x).sum().backward()
            rounds[-1][name] = (time.thread_time() - start) / n * MICRO
    kept = rounds[WARM_UP:]
    return {name: [taken[name] - taken["plain"] for taken in kept] for name in variants if name != "plain"}


def left_alone() -> dict[str, Figure]:
    """Return microseconds that hooks add per tensor that stays as it is, and their ratio."""
    plain, slim = Chain(torch.sin, N_SAVES), Chain(torch.sin, N_SAVES)
    variants = {"plain": plain, "identity": Identity(plain), "slim": slim}
    with slimgrad.attach(slim, bound=slimgrad.Relative(0.5)):
        added = added_by_turns(variants, torch.randn(16, requires_grad=True), N_SAVES)
    ratios = [slim / identity for slim, identity in zip(added["slim"], added["identity"], strict=True)]
    return {**{name: Figure.of(values) for name, values in added.items()}, "ratio": Figure.of(ratios)}


def codec_microseconds(n_values: int) -> list[float]:
    """Return the time of one encode and one decode into memory that is there, round for round."""
    nested, values, out = slimgrad.codecs.get("nested"), torch.randn(n_values), torch.empty(n_values)
    room = torch.empty(8 * n_values + 4096, dtype=torch.uint8)
    taken = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(N_CODED):
            payload = nested.encode(values, slimgrad.Relative(0.125), None, lambda nbytes: room[:nbytes])
            assert payload is not None
            nested.decode(payload, out)
        taken.append((time.thread_time() - start) / N_CODED * MICRO)
    return taken


def coded(n_values: int) -> dict[str, Figure]:
    """Return microseconds per coded tensor: all that slimgrad adds, the share of the codec, and the rest."""
    variants = {name: Chain(nn.functional.gelu, N_CODED) for name in ("plain", "slim")}
    with slimgrad.attach(variants["slim"], bound=slimgrad.Relative(0.5)):
        added = added_by_turns(variants, torch.randn(n_values, requires_grad=True), N_CODED)["slim"]
    codec = Figure.of(codec_microseconds(n_values))
    return {"added": Figure.of(added), "codec": codec, "beyond": Figure.of(value - codec.median for value in added)}


def main() -> None:
    parser = argparse.ArgumentParser(description="What slimgrad costs per saved tensor.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    alone = left_alone()
    sizes = {n_values: coded(n_values) for n_values in (2048, 16384)}
    table = Table(title="microseconds per saved tensor, median (quartiles)", title_justify="left", box=None)
    for name in ("tensor", "added", "codec", "beyond", "x identity hooks"):
        table.add_column(name, justify="left" if name == "tensor" else "right")
    table.add_row("left alone, identity hooks", str(alone["identity"]), "", "", "1")
    ratio = alone["ratio"]
    cell = f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
    table.add_row("left alone, slimgrad", str(alone["slim"]), "", "", cell)
    for n_values, row in sizes.items():
        table.add_row(f"coded, {n_values} values", *(str(row[name]) for name in ("added", "codec", "beyond")), "")
    Console(width=120).print(table)
    if arguments.json:
        record = {"machine": machine.describe(), "left_alone": alone, "coded": sizes}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
