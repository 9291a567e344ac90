"""FreeLunch's ablation: each of its optimisations on and off, the rest as shipped.

    python bench/ablation.py [--model resnet18] [--batch 16] [--rounds 5] [--json FILE]

arena      coded bytes in the sliding workspace; off: each in a tensor of its own, copied out of a scratch tensor
buffers    decoded values in pooled memory; off: each in a new tensor
overlap    coded by the worker beside compute; off (as shipped): before the forward goes on
ahead      disk swap reads two ahead; off: when backward asks

All arms are sessions on copies of one model in one process and take steps in turn; the fastest counts, since other work
on the machine only adds. CPU seconds are those of all threads, so they show what the worker does. `allocations` are
counted in a step after the third: new memory of at least 4 KiB that torch's allocator gave while a tensor was put away
or fetched, and, in brackets, new regions that the heap mapped. `left` are bytes in the arena after backward.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import slimgrad
from slimgrad.lab import machine, models
from slimgrad.storage import Arena, Buffers

WARM_UP = 3
LARGE = 4096  # bytes


class LooseSlot:
    """Coded bytes in a tensor of their own."""

    def __init__(self, payload: torch.Tensor) -> None:
        self.payload, self.nbytes, self.address = payload, payload.numel(), payload.data_ptr()


class NoArena(Arena):
    """What a codec gets without an arena: scratch memory, and a copy of what was used."""

    def reserve(self, nbytes: int) -> Any:
        return LooseSlot(torch.empty(nbytes, dtype=torch.uint8))

    def settle(self, slot: Any, used: int) -> None:
        slot.__init__(slot.payload[:used].clone())

    def room(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def keep(self, room: torch.Tensor, used: int) -> Any:
        return LooseSlot(room[:used].clone())


class NoBuffers(Buffers):
    """Every decoded tensor in new memory."""

    def take(self, nbytes: int, unit: int = 64) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def take_array(self, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int], nbytes: int) -> torch.Tensor:
        return torch.from_numpy(np.ndarray(shape, dtype, self.take(nbytes).numpy(), 0, strides))


class Allocations(TorchDispatchMode):
    """Counts results in memory that neither an argument nor the heap has."""

    def __init__(self, owns: Callable[[int], bool]) -> None:
        super().__init__()
        self.owns, self.n = owns, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor) and made.is_cpu and made.untyped_storage().nbytes() >= LARGE:
                address = made.untyped_storage().data_ptr()
                self.n += address not in known and not self.owns(address)
        return out


class Arm:
    """A model, its session, and how long its steps took."""

    def __init__(self, name: str, model: nn.Module, criterion: nn.Module, policy: Any) -> None:
        self.name, self.model, self.criterion = name, copy.deepcopy(model), criterion
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.session = slimgrad.attach(self.model, bound=slimgrad.Relative(0.25), policy=policy)
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.left = 0

    def without(self, part: str) -> Arm:
        shelf = self.session.shelf
        if part == "arena":
            shelf.arena = shelf.tiers._arena = NoArena()
        elif part == "buffers":
            shelf.buffers = shelf.tiers._buffers = NoBuffers()
        else:
            shelf.tiers.disk().schedule.n_ahead = 0
        return self

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        start, cpu_start = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.session.shelf.tiers.worker.drain()
        self.cpu_seconds.append(time.process_time() - cpu_start)
        self.left = self.session.shelf.arena.nbytes_live

    def count(self, x: torch.Tensor, y: torch.Tensor) -> tuple[int, int]:
        """Return how often a step allocates for saved tensors: torch's allocator, and regions of the heap."""
        shelf = self.session.shelf
        counter = Allocations(shelf.arena.owns)
        put, fetch, n_regions = shelf.put, shelf.fetch, shelf.arena.n_chunks

        def watched(call: Callable[..., Any]) -> Callable[..., Any]:
            def inner(*args: Any) -> Any:
                with counter:
                    return call(*args)

            return inner

        shelf.put, shelf.fetch = watched(put), watched(fetch)
        self.step(x, y)
        shelf.put, shelf.fetch = put, fetch
        self.seconds.pop()
        return counter.n, shelf.arena.n_chunks - n_regions


def arms(model: nn.Module, criterion: nn.Module) -> list[Arm]:
    compress = slimgrad.Compress()
    to_disk = slimgrad.Swap("disk", min_bytes=1 << 16)
    return [
        Arm("as shipped", model, criterion, compress),
        Arm("arena off", model, criterion, compress).without("arena"),
        Arm("buffers off", model, criterion, compress).without("buffers"),
        Arm("both off", model, criterion, compress).without("arena").without("buffers"),
        Arm("overlap on", model, criterion, slimgrad.Swap("host", min_bytes=1 << 16, overlap=True)),
        Arm("disk", model, criterion, to_disk),
        Arm("disk, ahead off", model, criterion, to_disk).without("ahead"),
        Arm("disk, overlap on", model, criterion, slimgrad.Swap("disk", min_bytes=1 << 16, overlap=True)),
    ]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per arm."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model, criterion = models.build(arguments.model), models.criterion(arguments.model)
    x, y = models.example(arguments.model, batch=arguments.batch, size=arguments.size)
    tested = arms(model, criterion)
    for number in range(WARM_UP + arguments.rounds):
        for arm in tested if number % 2 else reversed(tested):
            arm.step(x, y)
    base = min(tested[0].seconds[WARM_UP:])
    rows = []
    for arm in tested:
        n, n_regions = arm.count(x, y)
        fastest, cpu = min(arm.seconds[WARM_UP:]), statistics.median(arm.cpu_seconds[WARM_UP:])
        rows.append(
            {"arm": arm.name, "seconds": fastest, "ratio": fastest / base, "cpu_seconds": cpu}
            | {"allocations": n, "regions": n_regions, "left": arm.left}
        )
        arm.session.detach()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=112, help="of the images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments)
    table = Table("arm", "s/step", "/ shipped", "CPU s", "allocations", "left in arena")
    for row in rows:
        numbers = (f"{row['seconds']:.3f}", f"{row['ratio']:.3f}", f"{row['cpu_seconds']:.3f}")
        table.add_row(row["arm"], *numbers, f"{row['allocations']} ({row['regions']})", str(row["left"]))
    Console().print(table)
    if arguments.json:
        setup = {name: getattr(arguments, name) for name in ("model", "batch", "size", "rounds", "threads")}
        arguments.json.write_text(
            json.dumps({"machine": machine.describe(), "setup": setup, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
