"""The cheapest steps within a budget of noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimgrad import Relative, codecs
from slimgrad.bounds.rates import BITS, CURVES, MEASURED_AT, Item, cheapest
from slimgrad.codecs import Nested

DATA = {"sparse": torch.relu, "signed": lambda x: x, "centred": lambda x: x}


def noise_of(items, steps):
    return sum(item.sensitivity * step**2 for item, step in zip(items, steps, strict=True))


@pytest.mark.parametrize("curve", CURVES)
def test_curves_are_those_of_the_code(curve):
    x = DATA[curve](torch.randn(400_000, generator=torch.Generator().manual_seed(0)))
    for step, expected in zip(MEASURED_AT, CURVES[curve], strict=True):
        blob = codecs.encode(x, Nested(centred=curve == "centred"), bound=Relative(step / 2))
        assert blob.nbytes * 8 / x.numel() == pytest.approx(expected, rel=0.03)


def test_coarser_steps_cost_fewer_bits():
    for curve in CURVES:
        assert bool((np.diff(BITS[curve]) < 0).all())


@pytest.mark.parametrize("budget", [1e-6, 1e-3, 0.03, 1.0])
def test_the_budget_holds_and_is_used(budget):
    items = [Item(10_000, "sparse", 1.0, 0.02, 2.0), Item(90_000, "centred", 1.0, 0.005, 2.0)]
    steps = cheapest(items, budget)
    assert noise_of(items, steps) <= budget
    if budget == 1e-3:
        assert noise_of(items, steps) > 0.5 * budget


def test_the_larger_of_two_equals_gets_the_coarser_step():
    small, large = cheapest([Item(1_000, "centred", 1.0, 0.01, 2.0), Item(100_000, "centred", 1.0, 0.01, 2.0)], 2e-3)
    assert large > small


def test_limits_of_single_items_hold():
    assert cheapest([Item(1_000, "signed", 1.0, 1e-9, 0.5)], 1.0) == [0.5]


def test_limits_that_several_items_share_hold_and_only_those_pay():
    items = [Item(10_000, "sparse", 1.0, 1e-6, 2.0) for _ in range(3)]
    limits = np.array([[1.0, 3.0, 0.0], [0.1, 0.0, 0.0]])
    steps = cheapest(items, 1.0, limits)
    added = limits @ np.square(steps)
    assert bool((added <= 1.0).all())
    assert added[0] > 0.5
    assert steps[2] == 2.0


def test_what_limits_save_is_spent_elsewhere():
    items = [Item(10_000, "sparse", 1.0, 0.1, 2.0) for _ in range(2)]
    alone = cheapest(items, 0.1)
    limited = cheapest(items, 0.1, np.array([[100.0, 0.0]]))
    assert limited[0] < alone[0]
    assert limited[1] > alone[1]


def test_a_limit_that_no_step_keeps_means_exact():
    assert cheapest([Item(1_000, "signed", 1.0, 1e-9, 2.0)], 1.0, np.array([[1e12]])) == [0.0]


def test_no_budget_means_exact():
    assert cheapest([Item(1_000, "signed", 1.0, 1.0, 2.0)], 0.0) == [0.0]
    assert cheapest([], 1.0) == []
