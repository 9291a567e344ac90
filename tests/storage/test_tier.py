"""Tier: bytes leave memory and come back, ahead of their reader; whatever fails, they are not lost."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref

import pytest
import torch

from slimgrad import CorruptPayload
from slimgrad.storage import Arena, Buffers, Disk, Heap, Tier, Worker

KIB = 1 << 10


@pytest.fixture
def heap():
    return Heap()


@pytest.fixture
def tier(heap, tmp_path):
    tier = Tier(Disk(tmp_path), Buffers(heap), Worker())
    yield tier
    tier.close()


def some(nbytes: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def kept(arena: Arena, data: torch.Tensor):
    room = arena.room(data.numel() + 1000)
    room[: data.numel()] = data
    return arena.keep(room, data.numel())


def test_a_slot_leaves_the_arena_and_comes_back(tier, heap):
    arena, data = Arena(heap), some(100_000)
    spilled = tier.spill(kept(arena, data))
    assert spilled.nbytes == 100_000
    tier.worker.drain()
    assert not spilled.is_in_memory
    assert arena.nbytes_live == 0
    assert tier.disk.nbytes_live > 0
    assert torch.equal(spilled.payload, data)
    assert torch.equal(spilled.payload, data), "any number of times"
    del spilled
    assert tier.disk.nbytes_live == 0
    assert tier.buffers.nbytes_live == 0


def test_bytes_that_somebody_reads_stay_while_they_are_written(tier, heap):
    """The worker lets go of the arena's bytes at any moment, also in the middle of a decoder."""
    arena, data = Arena(heap), some(100_000)
    tier.worker.submit = lambda *_: True  # writes when it is told to, below
    spilled = tier.spill(kept(arena, data))
    payload = spilled.payload
    spilled.store()
    assert not spilled.is_in_memory
    kept(arena, torch.zeros_like(data))  # whoever comes next takes the lowest gap
    assert torch.equal(payload, data)
    del payload
    assert arena.nbytes_live == 0


def test_a_tensor_is_let_go_when_it_is_written(tier):
    data = some(100_000)
    copy, died = data.clone(), []
    spilled = tier.spill(data)
    weakref.finalize(data.untyped_storage(), died.append, True)
    del data
    tier.worker.drain()
    assert died == [True]
    assert torch.equal(spilled.payload, copy)


def test_what_is_still_in_memory_is_not_read(tier):
    gate = threading.Event()
    tier.worker.submit(tier, lambda _: gate.wait(20), 1)
    data = some(5000)
    spilled = tier.spill(data)
    assert spilled.is_in_memory
    assert spilled.payload.data_ptr() == data.data_ptr()
    assert spilled.take() is None
    gate.set()
    tier.worker.drain()
    assert torch.equal(spilled.payload, some(5000))
    assert tier.n_loaded == 1


def test_two_are_read_ahead(tier):
    spills = [tier.spill(some(10_000, seed)) for seed in range(5)]
    tier.worker.drain()
    assert torch.equal(spills[4].payload, some(10_000, 4))
    tier.worker.drain()
    assert tier.n_loaded == 3
    assert torch.equal(spills[3].payload, some(10_000, 3))
    assert torch.equal(spills[2].payload, some(10_000, 2))
    tier.worker.drain()
    assert tier.n_loaded == 5, "none was read twice"


def test_the_order_of_the_last_step_is_the_order_of_reading_ahead(tier):
    for _ in range(2):
        tier.begin_step()
        spills = [tier.spill(some(10_000, seed)) for seed in range(5)]
        tier.worker.drain()
        for number in (1, 3, 0, 4, 2):
            assert torch.equal(spills[number].payload, some(10_000, number))
            tier.worker.drain()
    before = tier.n_loaded
    tier.begin_step()
    spills = [tier.spill(some(10_000, seed)) for seed in range(5)]
    tier.worker.drain()
    spills[1].payload.sum()
    tier.worker.drain()
    assert [spilled._loaded is not None for spilled in spills] == [True, False, False, True, False]
    assert tier.n_loaded == before + 3


def test_a_reader_waits_for_a_read_that_is_under_way(tier, monkeypatch):
    spills = [tier.spill(some(10_000, seed)) for seed in range(2)]
    tier.worker.drain()
    read, started = tier.disk.read, threading.Event()

    def slow(extent, out):
        if tier.worker.is_own_thread:
            started.set()
            time.sleep(0.2)
        read(extent, out)

    monkeypatch.setattr(tier.disk, "read", slow)
    spills[1].payload.sum()
    started.wait(10)
    assert torch.equal(spills[0].payload, some(10_000))
    assert tier.n_loaded == 2


def test_a_full_disk_is_told_once_and_bytes_stay(tier, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    spills = [tier.spill(some(5000, 0))]
    tier.worker.drain()
    with pytest.warns(UserWarning, match=r"No space left.*directory=\.\.\."):
        tier.begin_step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spills.append(tier.spill(some(5000, 1)))
        tier.worker.drain()
        tier.begin_step()
    assert all(spilled.is_in_memory for spilled in spills)
    assert torch.equal(spills[0].payload, some(5000)) and torch.equal(spills[1].payload, some(5000, 1))


def test_room_that_comes_back_is_used(tier, monkeypatch):
    first = tier.spill(some(5000))
    tier.worker.drain()
    pwrite = os.pwrite

    def small(fd, data, at):
        if at + len(data) > 8192:
            raise OSError(28, "No space left on device")
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", small)
    second = tier.spill(some(5000, 1))
    tier.worker.drain()
    assert second.is_in_memory
    with pytest.warns(UserWarning, match="stay in memory"):
        tier.begin_step()
    del first
    third = tier.spill(some(5000, 2))
    tier.worker.drain()
    assert not third.is_in_memory
    assert torch.equal(third.payload, some(5000, 2))


def test_a_worker_that_died_is_told_and_bytes_stay(tier, monkeypatch):
    monkeypatch.setattr(tier.worker, "submit", lambda *_: False)
    with pytest.warns(UserWarning, match="has died"):
        spilled = tier.spill(some(5000))
    assert torch.equal(spilled.payload, some(5000))


def test_whatever_fails_in_the_worker_bytes_stay(tier, monkeypatch):
    monkeypatch.setattr(tier.disk, "write", lambda _: 1 / 0)
    spilled = tier.spill(some(5000))
    tier.worker.drain()
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        tier.begin_step()
    assert torch.equal(spilled.payload, some(5000))


def test_an_error_of_reading_ahead_is_raised_to_the_reader(tier):
    spills = [tier.spill(some(10_000, seed)) for seed in range(2)]
    tier.worker.drain()
    os.ftruncate(spills[0]._extent.file.fd, 0)
    for spilled in reversed(spills):
        with pytest.raises(CorruptPayload):
            spilled.payload.sum()
        tier.worker.drain()


def test_closed_with_bytes_outside(tier):
    spilled = tier.spill(some(10_000))
    tier.worker.drain()
    waiting = tier.spill(some(10_000, 1))
    tier.close()
    assert torch.equal(spilled.payload, some(10_000)) and torch.equal(waiting.payload, some(10_000, 1))


def test_many_in_any_order_under_back_pressure(tier, tmp_path):
    small = Tier(Disk(tmp_path), tier.buffers, Worker(capacity=64 * KIB))
    spills = {seed: small.spill(some(1000 + 977 * seed, seed)) for seed in range(100)}
    order = torch.randperm(100, generator=torch.Generator().manual_seed(3)).tolist()
    for seed in order:
        assert torch.equal(spills.pop(seed).payload, some(1000 + 977 * seed, seed))
    small.worker.drain()
    assert small.disk.nbytes_live == 0
    small.close()


def test_a_child_gets_what_has_not_left_memory_and_an_error_for_the_rest(tier):
    gone = tier.spill(some(10_000))
    tier.worker.drain()
    gate = threading.Event()
    tier.worker.submit(tier, lambda _: gate.wait(20), 1)
    waiting = tier.spill(some(10_000, 1))
    pid = os.fork()
    if pid == 0:
        try:
            is_right = bool((waiting.payload.numpy() == some(10_000, 1).numpy()).all())
            own = tier.spill(some(5000, 2))
            tier.worker.drain()
            is_right &= not own.is_in_memory and bool((own.payload.numpy() == some(5000, 2).numpy()).all())
            try:
                gone.payload.sum()
            except CorruptPayload:
                os._exit(0 if is_right else 2)
        finally:
            os._exit(1)
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    tier.worker.drain()
    assert torch.equal(gone.payload, some(10_000)) and torch.equal(waiting.payload, some(10_000, 1))
