"""A pool that counts as the heap does."""

from __future__ import annotations

import gc

from torch._subclasses.fake_tensor import FakeTensorMode

from slimgrad.planner.fake_shelf import WARM, FakeSlot, Item, Pool


def test_slots_and_buffers_share_one_high_water_mark():
    pool = Pool()
    item = Item("", 1, "conv input", 4000, 1000, "nested")
    slot = FakeSlot(pool, 1000, item)
    with FakeTensorMode():
        buffer = pool.take(500)
        assert buffer.numel() == 500
        assert pool.owns(buffer.view(-1).untyped_storage())
        assert not pool.owns(buffer.clone().untyped_storage())
        assert (pool.now, pool.high) == (1500, 1500)
        del buffer
        gc.collect()
    assert (pool.now, pool.high) == (1000, 1500)
    pool.clock = 7
    del slot
    assert (pool.now, pool.high) == (0, 1500)
    assert (item.born, item.died) == (0, 7)


def test_the_end_of_a_step_gives_back_all_but_the_first_pages():
    pool = Pool()
    pool.add(WARM + 5)
    pool.remove(WARM + 5)
    pool.trim()
    assert pool.high == WARM
    pool.add(WARM + 9)
    assert pool.touched == WARM + (1 << 21)
    pool.trim()
    assert pool.high == WARM + 9
