"""fit_batch finds the largest batch that fits, by few steps, none of them far too large."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.planner.fit_batch import fit_batch
from slimgrad.planner.meters import Live

MIB = 1 << 20


class Memory:
    """A step whose peak is a function of the batch; as a meter, it reports that."""

    name = "made up"

    def __init__(self, peak, refuses_above: float = float("inf")) -> None:
        self.peak, self.refuses_above, self.ran = peak, refuses_above, []

    def step(self, batch: int) -> None:
        self.ran.append(batch)
        if self.peak(batch) > self.refuses_above:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")

    def peak_of(self, call) -> int:
        call()
        return self.peak(self.ran[-1])


def fitted(memory: Memory, budget: int, **options):
    return fit_batch(memory.step, budget, meter=memory, **{"reserve": 0.0, **options})


@pytest.mark.parametrize("budget", [1100, 1101, 1999, 2000, 7777, 123_456, 10**6])
def test_a_straight_line_is_solved_exactly(budget):
    memory = Memory(lambda n: 1000 + 100 * n)
    batch = fitted(memory, budget)
    assert batch == (budget - 1000) // 100
    assert [n for n in memory.ran if n > 2 and memory.peak(n) > budget] == []
    assert len(memory.ran) < 18


def test_the_reserve_stays_free():
    memory = Memory(lambda n: 100 * n)
    assert fitted(memory, 10_000, reserve=0.05) == 95


@pytest.mark.parametrize("curve", [lambda n: 500 + n**1.5, lambda n: 90 * n - 20 * n**0.5, lambda n: 64 * (n // 8 + 1)])
def test_what_is_not_straight_is_verified(curve):
    memory = Memory(lambda n: int(curve(n)))
    batch = fitted(memory, 40_000)
    assert memory.peak(batch) <= 40_000
    assert memory.peak(int(batch * 1.1) + 8) > 40_000
    assert max(memory.peak(n) for n in memory.ran) <= 1.3 * 40_000


def test_a_failed_allocation_is_survived():
    memory = Memory(lambda n: 100 * n, refuses_above=5000)
    batch = fitted(memory, 10**6)
    assert batch == 50
    assert "allocation failed" in batch.log()


def test_other_errors_are_not_swallowed():
    def step(batch):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match=r"shapes"):
        fit_batch(step, "1GiB", meter="live")


def test_powers_of_two_and_the_ceiling():
    memory = Memory(lambda n: 10 * n)
    assert fitted(memory, 999, powers_of_two=True) == 64
    assert {n & (n - 1) for n in memory.ran} == {0}
    assert fitted(Memory(lambda n: 10 * n), 999, ceiling=40) == 40
    assert fitted(Memory(lambda n: 10 * n), 999, ceiling=40, powers_of_two=True) == 32
    assert fitted(Memory(lambda n: 10 * n), 999, floor=3, powers_of_two=True) == 64
    assert fitted(Memory(lambda n: 10 * n), 999, ceiling=1) == 1


def test_below_the_floor_it_says_so():
    with pytest.raises(ConfigError, match=r"expected a batch of 8 to fit .* got a peak of .* larger budget"):
        fitted(Memory(lambda n: 10_000 * MIB * n), 5000, floor=8)
    with pytest.raises(ConfigError, match=r"got a failed allocation"):
        fitted(Memory(lambda n: 100 * n, refuses_above=0), 5000)


@pytest.mark.parametrize("options", [{"floor": 0}, {"floor": 4, "ceiling": 3}, {"reserve": 1.0}, {"floor": 1.5}])
def test_options_are_checked(options):
    with pytest.raises(ConfigError, match=r"expected (floor|ceiling|reserve)"):
        fitted(Memory(lambda n: n), 100, **options)


def test_the_log_shows_what_was_tried():
    batch = fitted(Memory(lambda n: MIB * n), 1000 * MIB)
    lines = batch.log().splitlines()
    assert lines[0] == "largest batch in 1,000 MiB (made up, peak up to 1,000 MiB): 1000"
    assert len(lines) == 1 + len(batch.tries)
    assert batch.tries[-1].predicted == batch.tries[-1].peak == 1000 * MIB


def trained(session: bool):
    """Return a step of a small net as users write it."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    attached = slimgrad.attach(model, criterion) if session else None

    def step(batch: int) -> None:
        x, y = torch.randn(batch, 3, 48, 48), torch.randint(10, (batch,))
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, attached


def test_a_real_net_fits_more_when_it_is_slim():
    plain, _ = trained(session=False)
    slim, session = trained(session=True)
    assert session is not None
    with session:
        batches = [fit_batch(plain, 12 * MIB, meter="live"), fit_batch(slim, 12 * MIB, meter=Live(session))]
    assert batches[1] > 1.5 * batches[0]
    for batch in batches:
        assert [one.fits for one in batch.tries if one.batch == batch][-1]
        assert batch.line.at(int(batch * 1.05) + 1) > batch.limit


def test_a_limit_on_the_address_space_is_survived():
    program = """
import resource, torch, slimgrad
torch.set_num_threads(1)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (280 << 20),) * 2)
kept = []
def step(n):
    x = torch.ones(n << 20, dtype=torch.uint8)
    y = x + 1
n = slimgrad.fit_batch(step, "100GiB")
assert any(one.peak is None for one in n.tries), n.log()
assert 40 < n <= 128, n.log()
step(int(n))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
