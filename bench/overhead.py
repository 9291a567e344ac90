"""What slimgrad's Python costs per saved tensor, in microseconds.

    python bench/overhead.py [--json FILE]

left alone    chains of `sin` on tiny tensors: plain, with identity hooks, and attached. What hooks add is the
              difference to plain; slimgrad's share is compared with that of identity hooks in the same run.
coded         chains of `relu` and `conv2d` on tensors just above and far above min_bytes: what pack and unpack take
              beyond the kernels' own time, which the ledger records.

All variants take turns; each figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
ROUNDS = 31
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
    """Return the median time of forward and backward of each variant."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(ROUNDS + 3):
        for name, model in variants.items():
            start = time.perf_counter()
            model(x).sum().backward()
            if round_number >= 3:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def left_alone() -> dict[str, float]:
    """Return microseconds that hooks add per tensor that stays as it is."""
    plain, slim = Chain(torch.sin, N_SAVES), Chain(torch.sin, N_SAVES)
    variants = {"plain": plain, "identity": Identity(plain), "slim": slim}
    with slimgrad.attach(slim, bound=slimgrad.Relative(0.5)):
        taken = seconds_by_turns(variants, torch.randn(16, requires_grad=True))
    added = {name: (taken[name] - taken["plain"]) / N_SAVES * MICRO for name in ("identity", "slim")}
    return {**added, "ratio": added["slim"] / added["identity"]}


def coded(n_values: int) -> dict[str, float]:
    """Return microseconds per coded tensor: all that slimgrad adds, the kernels' share, and the rest."""
    n = 100
    weight = torch.eye(16).reshape(16, 16, 1, 1)
    step = lambda x: torch.relu(torch.conv2d(x, weight))  # noqa: E731
    plain, slim = Chain(step, n), Chain(step, n)
    shape = (1, 16, n_values // 16, 1)
    with slimgrad.attach(slim, bound=slimgrad.Relative(0.5)) as session:
        taken = seconds_by_turns({"plain": plain, "slim": slim}, torch.rand(shape, requires_grad=True))
        roles = session.report().to_dict()["roles"]
    kernels = sum(role["encode_seconds"] + role["decode_seconds"] for role in roles) / (ROUNDS + 3) / n * MICRO
    added = (taken["slim"] - taken["plain"]) / n * MICRO
    return {"values": n_values, "added": added, "kernels": kernels, "beyond": added - kernels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    alone = left_alone()
    sizes = [coded(n_values) for n_values in (2048, 16384, 131072)]
    table = Table(title="microseconds per saved tensor", title_justify="left", box=None)
    for name in ("tensor", "added", "kernels", "beyond", "x identity hooks"):
        table.add_column(name, justify="left" if name == "tensor" else "right")
    table.add_row("left alone, identity hooks", f"{alone['identity']:.1f}", "", "", "1")
    table.add_row("left alone, slimgrad", f"{alone['slim']:.1f}", "", "", f"{alone['ratio']:.2f}")
    for row in sizes:
        cells = [f"{row[name]:.1f}" for name in ("added", "kernels", "beyond")]
        table.add_row(f"coded, {row['values']:.0f} values", *cells, "")
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"left_alone": alone, "coded": sizes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
