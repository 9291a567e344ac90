"""Swapping without a disk: what is in memory is what the real tier would have there."""

from __future__ import annotations

import gc

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from slimgrad import Swap
from slimgrad.planner.fake_disk import FakeTiers
from slimgrad.planner.fake_pool import Pool
from slimgrad.planner.fake_shelf import FakeSlot

N = 1 << 20


def test_one_is_being_written_and_two_are_read_ahead():
    pool = Pool()
    tiers = FakeTiers(pool, Swap("disk"))
    tier = tiers.disk()
    spilled = []
    for clock in range(4):
        spilled.append(tier.spill(FakeSlot(pool, N, 4 * N)))
        assert spilled[-1].is_in_memory
        assert pool.now == N, "the one that is being written"
        pool.tick(clock)
    assert not any(one.is_in_memory for one in spilled)
    with FakeTensorMode():
        own = spilled[-1].take()
        assert own is not None
        assert own.nbytes == N
        assert N <= pool.now < 1.1 * N
        pool.tick(9)
        assert 3 * N <= pool.now < 3.1 * N, "two more after the next operator"
        del own
        gc.collect()
        assert 2 * N <= pool.now < 2.1 * N
    tiers.close()


def test_uncoded_bytes_wait_as_the_tensor_that_they_are():
    pool = Pool()
    tier = FakeTiers(pool, Swap("disk")).disk()
    with FakeTensorMode():
        tensors = [torch.empty(N, dtype=torch.uint8) for _ in range(2)]
        first = tier.spill(tensors[0])
        pool.tick(1)
        last = tier.spill(tensors[1])
        assert pool.now == 0
        assert first.take() is not None
        assert last.take() is None
        assert last.payload.nbytes == N
