"""Host: who waits for whom, and blocks that are used again. The device is played by a log of what was asked of it."""

from __future__ import annotations

import pytest
import torch

from slimgrad.storage import host as module
from slimgrad.storage.host import UNIT, Host

LOG: list[str] = []


class Stream:
    def __init__(self, name: object) -> None:
        self.name = name if isinstance(name, str) else "side"

    def __enter__(self) -> None:
        LOG.append(f"on {self.name}")

    def __exit__(self, *_: object) -> None:
        LOG.append("off")

    def wait_stream(self, other: Stream) -> None:
        LOG.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        LOG.append(f"{self.name} waits for event of {event.stream}")


class Event:
    def __init__(self, device: object) -> None:
        self.stream = ""

    def record(self, stream: Stream) -> None:
        self.stream = stream.name
        LOG.append("event")


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    LOG.clear()
    empty = torch.empty
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda *_: Stream("training"))
    monkeypatch.setattr(module.torch, "Stream", Stream)
    monkeypatch.setattr(module.torch, "Event", Event)
    monkeypatch.setattr(module.torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _, stream: LOG.append(f"used on {stream.name}"))


def some(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_out_the_side_stream_waits_and_the_allocator_knows():
    Host().spill(some(100))
    assert LOG == ["side waits for training", "on side", "off", "used on side"]


def test_back_the_training_stream_waits_and_the_allocator_knows():
    hosted = Host().spill(some(100))
    LOG.clear()
    assert torch.equal(hosted.take(), some(100))
    assert LOG == ["on side", "event", "off", "training waits for event of side", "used on training"]
    assert torch.equal(hosted.take(), some(100)), "any number of times"


def test_two_are_copied_ahead():
    host = Host()
    hosted = [host.spill(some(100, seed)) for seed in range(5)]
    hosted[4].take()
    assert [one._loaded is not None for one in hosted] == [False, False, True, True, False]
    LOG.clear()
    assert torch.equal(hosted[3].take(), some(100, 3))
    assert LOG.count("event") == 1, "of number 1; its own was there"


def test_blocks_are_used_again():
    host = Host()
    first = host.spill(some(100))
    address = first._block.data_ptr()
    second = host.spill(some(UNIT, 1))
    del first
    assert host.spill(some(50, 2))._block.data_ptr() == address
    assert host.nbytes_peak == 2 * UNIT
    assert torch.equal(second.take(), some(UNIT, 1))


@pytest.mark.parametrize("n", [1, UNIT, UNIT + 1, 3 * UNIT // 2, 2 * UNIT, 3 * UNIT, 5 * UNIT, 8 * UNIT + 1])
def test_blocks_waste_little(n):
    size = module._block_size(n)
    assert n <= size <= max(UNIT, 3 * n // 2 + 1)


def test_where_pinning_is_refused_ordinary_memory_serves(monkeypatch):
    empty = torch.empty

    def refuses(*size, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("cannot pin")
        return empty(*size, **options)

    monkeypatch.setattr(module.torch, "empty", refuses)
    host = Host()
    assert torch.equal(host.spill(some(100)).take(), some(100))
    assert host.n_pageable == 1


def test_closed_with_bytes_outside():
    host = Host()
    hosted = host.spill(some(100))
    host.close()
    assert torch.equal(hosted.take(), some(100))
    del hosted
    assert len(host.returned) == 1
