"""What slimgrad's Python costs per saved tensor, in microseconds.

    python bench/overhead.py [--json FILE]

left alone    chains of `sin` on tiny tensors: plain, with identity hooks, and attached. What hooks add is the
              difference to plain; slimgrad's share is compared with that of identity hooks in the same run.
coded         chains of `gelu`, each of which saves one tensor that is coded: what pack and unpack add, and how much of
              that one call of the codec's encode and one of its decode take on a tensor of that size.

All variants take turns; each figure is the smallest over rounds, since other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import slimgrad

N_SAVES = 400
ROUNDS = 61
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


def seconds_by_turns(variants: dict[str, nn.Module], x: torch.Tensor) -> dict[str, float]:
    """Return the shortest time of forward and backward of each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(ROUNDS + 3):
        for name, model in variants.items():
            start = time.perf_counter()
            model(x).sum().backward()
            if round_number >= 3:
                seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


def left_alone() -> dict[str, float]:
    """Return microseconds that hooks add per tensor that stays as it is."""
    plain, slim = Chain(torch.sin, N_SAVES), Chain(torch.sin, N_SAVES)
    variants = {"plain": plain, "identity": Identity(plain), "slim": slim}
    with slimgrad.attach(slim, bound=slimgrad.Relative(0.5)):
        taken = seconds_by_turns(variants, torch.randn(16, requires_grad=True))
    added = {name: (taken[name] - taken["plain"]) / N_SAVES * MICRO for name in ("identity", "slim")}
    return {**added, "ratio": added["slim"] / added["identity"]}


def codec_seconds(n_values: int) -> float:
    """Return the shortest time of one encode and one decode into memory that is there."""
    nested, values, room = (
        slimgrad.codecs.get("nested"),
        torch.randn(n_values),
        torch.empty(8 * n_values + 4096, dtype=torch.uint8),
    )
    out, best = torch.empty(n_values), float("inf")
    for _ in range(10 * ROUNDS):
        start = time.perf_counter()
        payload = nested.encode(values, slimgrad.Relative(0.125), None, lambda nbytes: room[:nbytes])
        assert payload is not None
        nested.decode(payload, out)
        best = min(best, time.perf_counter() - start)
    return best


def coded(n_values: int) -> dict[str, float]:
    """Return microseconds per coded tensor: all that slimgrad adds, the share of the codec, and the rest."""
    n = 100
    plain, slim = Chain(nn.functional.gelu, n), Chain(nn.functional.gelu, n)
    with slimgrad.attach(slim, bound=slimgrad.Relative(0.5)):
        taken = seconds_by_turns({"plain": plain, "slim": slim}, torch.randn(n_values, requires_grad=True))
    codec = codec_seconds(n_values) * MICRO
    added = (taken["slim"] - taken["plain"]) / n * MICRO
    return {"values": n_values, "added": added, "codec": codec, "beyond": added - codec}


def main() -> None:
    parser = argparse.ArgumentParser(description="What slimgrad costs per saved tensor.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    alone = left_alone()
    sizes = [coded(n_values) for n_values in (2048, 16384)]
    table = Table(title="microseconds per saved tensor", title_justify="left", box=None)
    for name in ("tensor", "added", "codec", "beyond", "x identity hooks"):
        table.add_column(name, justify="left" if name == "tensor" else "right")
    table.add_row("left alone, identity hooks", f"{alone['identity']:.1f}", "", "", "1")
    table.add_row("left alone, slimgrad", f"{alone['slim']:.1f}", "", "", f"{alone['ratio']:.2f}")
    for row in sizes:
        cells = [f"{row[name]:.1f}" for name in ("added", "codec", "beyond")]
        table.add_row(f"coded, {row['values']:.0f} values", *cells, "")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"left_alone": alone, "coded": sizes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
