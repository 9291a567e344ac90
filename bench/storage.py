"""What storage costs, and what one heap for coded bytes and decode buffers saves.

    python bench/storage.py [--model resnet50] [--batch 4] [--json FILE]

cost      microseconds to make and free a slot and a decode buffer, and the bare tensor that both are made of
pages     seconds per GB for writing memory: fresh or warm, in huge pages or ordinary ones
peak      bytes of live tensors beside the static ones in one training step: plain; as shipped; with a heap that stays
          warm between steps; with an arena and buffers that share nothing

Each time is the smallest of several, since other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import json
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import slimgrad
from slimgrad.lab import models
from slimgrad.report.memory import LiveBytes
from slimgrad.storage import Arena, Buffers, Heap, pages
from slimgrad.storage.pages import Pages

MIB = 1 << 20
WARM_UP = 2  # steps before the one whose peak is taken


def costs() -> dict[str, float]:
    """Return microseconds per object."""
    heap = Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    values = np.zeros(100_000, dtype=np.uint8)

    def slot() -> None:
        room = arena.room(100_000)
        arena.keep(room, room.numel())

    work: dict[str, Callable[[], object]] = {
        "bare tensor": lambda: torch.from_numpy(values[64:]),
        "slot": slot,
        "buffer": lambda: buffers.take(100_000),
    }
    return {name: min(timeit.repeat(do, number=100, repeat=1000)) / 100 * 1e6 for name, do in work.items()}


def page_seconds(nbytes: int = 16 * MIB) -> dict[str, float]:
    """Return seconds per GB of copying into memory of each kind."""
    source = np.ones(nbytes, dtype=np.uint8)
    grants = pages.grants_huge_pages
    found = {}
    for kind in ("huge", "ordinary"):
        pages.grants_huge_pages = grants if kind == "huge" else lambda: False
        part = Pages(nbytes)
        for state in ("fresh", "warm"):
            fastest = float("inf")
            for _ in range(40):
                if state == "fresh":
                    part.touch(nbytes)
                    part.forget(0)
                start = time.perf_counter()
                part.values[:nbytes] = source
                fastest = min(fastest, time.perf_counter() - start)
            found[f"{state}, {kind} pages"] = fastest / nbytes * 1e9
    pages.grants_huge_pages = grants
    return found


def peak(variant: str, name: str, batch: int) -> int:
    """Return the peak of live bytes beside the static ones in one step."""
    torch.manual_seed(0)
    model, criterion = models.build(name), models.criterion(name)
    inputs, target = models.example(name, batch=batch)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pooled, owns, session = None, None, None
    if variant != "plain":
        session = slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.5))
        shelf = session.shelf
        if variant == "apart":
            shelf.arena, shelf.buffers = Arena(Heap()), Buffers()
        if variant != "one heap":
            shelf.arena.trim = shelf.buffers.trim = lambda: None
        arena, buffers = shelf.arena, shelf.buffers
        pooled = lambda: arena.nbytes_touched + buffers.nbytes_held  # noqa: E731
        owns = lambda address: arena.owns(address) or buffers.owns(address)  # noqa: E731
    for _ in range(WARM_UP):
        criterion(model(inputs), target).backward()
    with LiveBytes(pooled, owns) as live:
        static = [inputs, target, *model.buffers()]
        static += [tensor for p in model.parameters() for tensor in (p, p.grad) if tensor is not None]
        live.track(*static)
        before = live.now
        live.reset_peak()
        criterion(model(inputs), target).backward()
    if session is not None:
        session.detach()
    return live.peak - before


def main() -> None:
    parser = argparse.ArgumentParser(description="What storage costs and saves.")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    variants = ("plain", "one heap", "stays warm", "apart")
    result = {
        "cost, microseconds": costs(),
        "pages, seconds per GB": page_seconds(),
        f"peak of {args.model}, batch {args.batch}, MB": {
            variant: peak(variant, args.model, args.batch) / 1e6 for variant in variants
        },
    }
    for title, numbers in result.items():
        table = Table(title, "")
        for label, number in numbers.items():
            table.add_row(label, f"{number:,.2f}")
        Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
