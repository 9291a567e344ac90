"""Relative bounds hold for the view that was saved, whatever lies beside it in its storage."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.bounds.fixed import Absolute, Relative
from slimgrad.policy import Plan
from slimgrad.view_bounds import covers, own_eps, own_plan


def error_of(make: type[nn.Module], bound: object, n_steps: int = 1, **options: float) -> float:
    """Return the relative error of the gradient of the layer that reads the small view."""
    torch.manual_seed(0)
    model, x = make(**options), torch.randn(64, 64)
    model(x).backward()
    exact = model.reader.weight.grad.clone()
    with slimgrad.attach(model, bound=bound):
        for _ in range(n_steps):
            model.zero_grad()
            model(x).backward()
    return float((model.reader.weight.grad - exact).norm() / exact.norm())


class Halves(nn.Module):
    """One half of a projection is 300 times the other; `first` says which is read first."""

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self.first, self.both = first, nn.Linear(64, 128)
        self.reader, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
        with torch.no_grad():
            self.both.weight[:64] *= 300

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large, small = self.both(x).chunk(2, -1)
        if self.first:
            return self.reader(small).square().sum() + self.other(large).sum()
        return self.other(large).sum() + self.reader(small).square().sum()


class Buffered(nn.Module):
    """What is read is half of a storage that is full of something else."""

    def __init__(self, beside: float) -> None:
        super().__init__()
        self.beside, self.source, self.reader = beside, nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        room = x.new_full((128, 64), self.beside)
        room[:64] = self.source(x)
        return self.reader(room[:64]).square().sum()


@pytest.mark.parametrize("first", [0, 1])
def test_a_small_half_beside_a_large_one_keeps_its_own_bound(first: int) -> None:
    assert error_of(Halves, Relative(0.25), first=first) < 0.2


@pytest.mark.parametrize("beside", [0.0, 1e3, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("bound", [Relative(0.25), slimgrad.Noise(0.05)])
def test_what_lies_beside_does_not_matter(bound: object, beside: float) -> None:
    assert error_of(Buffered, bound, n_steps=4, beside=beside) < 0.4


def test_the_bound_is_that_of_the_view_and_of_its_smallest_channel() -> None:
    storage = torch.cat([torch.full((2, 8), 100.0), torch.tensor([[2.0] * 8, [0.0] * 4 + [4.0] * 4])])
    view = storage[2:]
    assert covers(storage, storage.nbytes) and not covers(view, storage.nbytes)
    rms = math.sqrt((8 * 4 + 4 * 16) / 12)
    assert own_eps(Relative(0.5), view) == pytest.approx(0.5 * rms, rel=1e-4)
    assert own_eps(Relative(0.5), view) < 0.5 * rms
    assert own_eps(Relative(0.5), view, axis=0) == pytest.approx(0.5 * 2.0, rel=1e-4)
    plan = own_plan(Plan(None, Relative(0.5)), view, storage.nbytes)
    assert plan.bound == Absolute(own_eps(Relative(0.5), view))


def test_whole_storages_absolute_bounds_and_zeros_need_nothing() -> None:
    storage = torch.ones(4, 8)
    relative, absolute = Plan(None, Relative(0.5)), Plan(None, Absolute(0.5))
    assert own_plan(relative, storage, storage.nbytes) is relative
    assert own_plan(absolute, storage[:2], storage.nbytes) is absolute
    assert own_plan(relative, torch.zeros(4, 8)[:2], storage.nbytes) is relative
