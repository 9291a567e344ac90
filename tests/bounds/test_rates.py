"""The cheapest steps within a budget of noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slimgrad import Relative, codecs
from slimgrad.bounds.rates import (
    BASE,
    COARSEST_STEP,
    CURVES,
    EXACT_BITS,
    FINEST_STEP,
    MEASURED_AT,
    Item,
    bits,
    cheapest,
    factor_of,
)
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
        assert bool((np.diff(CURVES[curve]) < 0).all())


@pytest.mark.parametrize("budget", [1e-6, 1e-3, 0.03, 1.0])
def test_the_budget_holds_and_is_used(budget):
    items = [Item(10_000, "sparse", 1.0, 0.02, 2.0), Item(90_000, "centred", 1.0, 0.005, 2.0)]
    steps = cheapest(items, budget)
    assert noise_of(items, steps) <= budget
    if budget == 1e-3:
        assert noise_of(items, steps) > 0.5 * budget


def bits_of(items, steps):
    pairs = zip(items, steps, strict=True)
    return sum(item.numel * (bits(item.curve, step) if step else EXACT_BITS) for item, step in pairs)


def best_of_all(items, budget, limits):
    """Return the fewest bits over a grid of steps of three items."""
    grid = 2.0 ** np.linspace(np.log2(FINEST_STEP), np.log2(COARSEST_STEP), 46)
    steps = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), axis=-1).reshape(-1, 3)
    noise = steps**2 @ np.array([item.sensitivity for item in items])
    cost = sum(item.numel * np.interp(np.log2(steps[:, k]), np.log2(MEASURED_AT), CURVES[item.curve])
               for k, item in enumerate(items))  # fmt: skip
    return cost[(noise <= budget) & (steps**2 @ limits.T <= 1.0).all(axis=1)].min()


@pytest.mark.parametrize("budget", [1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("limits", [[[0.0, 0.0, 0.0]], [[0.5, 8.0, 0.0], [0.0, 1.0, 30.0]], [[300.0, 0.2, 0.0]]])
def test_no_other_steps_are_much_cheaper(budget, limits):
    items = [
        Item(40_000, "sparse", 1.0, 0.02, 2.0),
        Item(60_000, "centred", 1.0, 0.004, 2.0),
        Item(9_000, "signed", 1.0, 0.02, 2.0),
    ]
    assert bits_of(items, cheapest(items, budget, np.array(limits))) <= 1.02 * best_of_all(
        items, budget, np.array(limits)
    )


def test_what_the_places_of_zeros_take_is_not_scaled():
    full = factor_of("sparse", 1.0, bits("sparse", 1.0))
    assert full == pytest.approx(1.0)
    x = torch.relu(torch.randn(400_000, generator=torch.Generator().manual_seed(0)) - 1.0)
    stored = {step: codecs.encode(x, Nested(), bound=Relative(step / 2)).nbytes * 8 / x.numel() for step in (0.25, 1.0)}
    base = BASE["sparse"]
    predicted = base + factor_of("sparse", 1.0, stored[1.0]) * (bits("sparse", 0.25) - base)
    assert predicted == pytest.approx(stored[0.25], rel=0.1)


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


def test_limits_are_spent_also_where_all_steps_are_the_coarsest_at_first():
    items = [Item(10_000, "sparse", 1.2, 0.8, 0.25) for _ in range(3)]
    of_two = np.array([[3.2, 0.0, 3.2]]) / 0.03
    noise = 0.8 * np.square(cheapest(items, 0.03, of_two))
    assert 0.95 < noise.sum() / 0.03 <= 1.0
    assert 0.95 < (noise[0] + noise[2]) / (0.03 / 4.0) <= 1.0


def test_a_limit_that_no_step_keeps_means_exact():
    assert cheapest([Item(1_000, "signed", 1.0, 1e-9, 2.0)], 1.0, np.array([[1e12]])) == [0.0]


def test_no_budget_means_exact():
    assert cheapest([Item(1_000, "signed", 1.0, 1.0, 2.0)], 0.0) == [0.0]
    assert cheapest([], 1.0) == []
