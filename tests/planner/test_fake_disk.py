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
    spilled = [tier.spill(FakeSlot(pool, N, 4 * N)) for _ in range(5)]
    assert [one.is_in_memory for one in spilled] == [False] * 4 + [True]
    assert pool.now == N
    with FakeTensorMode():
        spilled.pop()
        own = spilled[-1].take()
        assert own is not None
        assert own.nbytes == N
        loads = 3  # this one and two more
        assert loads * N <= pool.now < (loads + 0.1) * N
        del own
        gc.collect()
        assert (loads - 1) * N <= pool.now < loads * N
    tiers.close()


def test_uncoded_bytes_wait_as_the_tensor_that_they_are():
    pool = Pool()
    tier = FakeTiers(pool, Swap("disk")).disk()
    with FakeTensorMode():
        tensors = [torch.empty(N, dtype=torch.uint8) for _ in range(2)]
        first, last = (tier.spill(tensor) for tensor in tensors)
        assert pool.now == 0
        assert first.take() is not None
        assert last.take() is None
        assert last.payload.nbytes == N
