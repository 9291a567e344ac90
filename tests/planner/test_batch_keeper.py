"""The batch follows what fits: down at once, up only when it pays."""

from __future__ import annotations

import pytest

from slimgrad.errors import ConfigError
from slimgrad.planner.batch_keeper import BatchKeeper
from slimgrad.planner.fit_batch import fit_batch


class Drifting:
    """A step whose memory per example changes; as a meter, it reports its peak."""

    name = "made up"

    def __init__(self) -> None:
        self.per_example, self.room, self.ran = 100, 10**9, []

    def step(self, batch: int) -> None:
        self.ran.append(batch)
        if 1000 + self.per_example * batch > self.room:
            raise MemoryError

    def peak_of(self, call) -> int:
        call()
        return 1000 + self.per_example * self.ran[-1]


def keeper_of(memory: Drifting, **options) -> BatchKeeper:
    return BatchKeeper(fit_batch(memory.step, 11_000, reserve=0.0, meter=memory, **options), every=1)


def test_the_batch_follows_the_ratio():
    memory = Drifting()
    keeper = keeper_of(memory)
    assert keeper.run(memory.step) == keeper.batch == 100
    assert keeper.changes == []
    memory.per_example = 110
    assert keeper.run(memory.step) == 100
    assert keeper.batch == 90
    memory.per_example = 100  # a tenth more would fit, which is not worth a change
    keeper.run(memory.step)
    assert keeper.batch == 90
    memory.per_example = 50
    keeper.run(memory.step)
    assert keeper.batch == 200
    assert [change.batch for change in keeper.changes] == [100, 90]


def test_a_failed_allocation_halves_the_batch_and_the_step_is_repeated():
    memory = Drifting()
    keeper = keeper_of(memory)
    memory.room = 4000
    assert keeper.run(memory.step) == 25
    assert memory.ran[-3:] == [100, 50, 25]


def test_below_the_floor_the_failure_is_the_callers():
    memory = Drifting()
    keeper = keeper_of(memory, floor=60)
    memory.room = 1
    with pytest.raises(MemoryError):
        keeper.run(memory.step)
    assert keeper.batch == 60


def test_ceiling_and_powers_of_two_hold():
    memory = Drifting()
    keeper = keeper_of(memory, ceiling=150, powers_of_two=True)
    assert keeper.batch == 64
    memory.per_example = 10
    keeper.run(memory.step)
    assert keeper.batch == 128


def test_it_wants_a_fit():
    with pytest.raises(ConfigError, match=r"expected what slimgrad.fit_batch returned, got 7"):
        BatchKeeper(7)
