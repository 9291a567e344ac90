"""A pool without memory that counts as the heap does."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from slimgrad.planner.fake_pool import Pool, Unmapped
from slimgrad.storage import Arena, Buffers, Heap, pages
from slimgrad.storage.heap import PATIENCE, WARM

MIB = 1 << 20


def test_slots_and_buffers_lie_in_one_piece():
    pool = Pool()
    slot = pool.reserve(1000, 4000)
    with FakeTensorMode():
        buffer = pool.take(500)
        assert buffer.numel() == 500
        assert pool.owns(buffer.view(-1).untyped_storage())
        assert not pool.owns(buffer.clone().untyped_storage())
        assert pool.now == 1000 + 512
        assert pool.level() == 1024 + 512, "above the slot, which gave back what it did not need"
        del buffer
        gc.collect()
    assert pool.level() == 1024 + 512, "so far it had reached"
    assert pool.level() == 1024
    del slot
    assert (pool.now, pool.level(), pool.level()) == (0, 1024, 0)


@pytest.mark.parametrize("is_huge", [True, False])
def test_pages_are_touched_kept_and_given_back_as_those_of_the_real_heap(is_huge, monkeypatch):
    if is_huge and not pages.grants_huge_pages():
        pytest.skip("this system has no huge pages")
    if not is_huge:
        monkeypatch.setattr(pages, "grants_huge_pages", lambda: False)
        monkeypatch.setattr("slimgrad.planner.fake_pool.grants_huge_pages", lambda: False)
    pool, heap = Pool(), Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    generator = torch.Generator().manual_seed(0)
    for _ in range(PATIENCE + 2):
        held = []
        for size in torch.randint(1, 8 * MIB, (8,), generator=generator).tolist():
            fake, real = pool.reserve(size // 9, size), arena.reserve(size)
            arena.settle(real, size // 9)
            with FakeTensorMode():
                buffer = pool.take(size, 4096)
            held.append((fake, real, buffer, buffers.take(size, 4096)))
            del fake, real, buffer
            if len(held) == 5:
                held = held[1::2]
            assert pool.touched == heap.nbytes_touched
        held.clear()
        gc.collect()
        pool.trim()
        heap.trim()
        assert pool.touched == heap.nbytes_touched
    assert pool.touched == 0 or not is_huge or pool.touched <= WARM + 2 * MIB


def test_nothing_is_mapped():
    nothing = Unmapped(1 << 50)
    nothing.touch(1 << 40)
    assert (nothing.touched, nothing.values.nbytes) == (1 << 40, 0)
    nothing.forget(1 << 30)
    assert nothing.touched == 1 << 30
