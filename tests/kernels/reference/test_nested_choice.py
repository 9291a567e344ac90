"""From a bound to a code: grids, splits, steps that survive rounding."""

from __future__ import annotations

import math

import pytest
import torch

from slimgrad.kernels.reference import nested_choice
from slimgrad.kernels.reference.nested_choice import NestedWish

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COARSE = NestedWish(1, 1, False, False, 0.5, 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("eps", [1e-44, 1e-6, 0.013, 0.5, 300.0, 3e38])
def test_grid_tables_keep_eps_in_real_arithmetic(dtype, eps):
    thresholds, values = nested_choice._grid_tables(eps, dtype)
    for table in (thresholds, values):
        assert torch.equal(table.to(dtype).to(torch.float32), table), "every entry lies on the grid"
    if values.numel() == 0:
        assert eps < float(torch.finfo(dtype).smallest_normal), "only a bound below the grid has no table"
        return
    lower, upper, middle = thresholds[:-1].double(), thresholds[1:].double(), values.double()
    assert bool((middle - lower <= eps).all())
    assert bool((upper - middle <= eps).all())
    assert bool((middle > lower).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_grid_is_the_largest_number_not_above(dtype):
    for x in (0.1, 1.0, 1.0 + 2.0**-30, 3.14159, 65000.0, 1e-7):
        below = nested_choice._on_grid(x, dtype)
        above = torch.nextafter(torch.tensor(below, dtype=dtype), torch.tensor(math.inf, dtype=dtype))
        assert below <= x < float(above)


def test_split_stays_unary_at_coarse_steps_and_takes_low_bits_at_fine_ones():
    reach = nested_choice.GRIDS[torch.float32].reach
    assert [nested_choice._split(rms, reach)[1] for rms in (0.5, 1.0, 2.0, 4.0, 10.0, 100.0)] == [0, 0, 0, 1, 2, 6]


def test_levels_in_16_bits_end_where_values_are_rare():
    assert nested_choice._split(1.0, nested_choice.GRIDS[torch.bfloat16].reach) == (7, 0)
    assert nested_choice._split(1.0, nested_choice.GRIDS[torch.float32].reach) == (15, 0)


def test_sums_count_finite_values_and_non_zeros_by_channel():
    flat = torch.tensor([1.0, 0.0, math.nan, 2.0, -2.0, math.inf])
    sums = nested_choice._sums(flat, NestedWish(2, 1, False, False, 0.5, 0.0))
    assert sums.tolist() == [[2.0, 2.0, -1.0, 5.0], [2.0, 1.0, 2.0, 4.0]]


def test_a_sample_sees_every_channel():
    wish = NestedWish(64, 49, True, True, 0.5, 0.0)
    sums = nested_choice._sums(torch.ones(64 * 49 * 40), wish)
    assert float(sums[:, 0].min()) > 50
    assert float(sums[:, 0].sum()) < 64 * 49 * 40 / 4


@pytest.mark.parametrize("outer", [32, 64, 128])
@pytest.mark.parametrize(("channels", "inner"), [(16, 1024), (48, 256), (64, 64), (256, 49), (512, 196), (1, 4096)])
def test_a_sample_sees_all_parts_of_every_channel(outer, channels, inner):
    """Sizes are multiples of powers of two: runs at equal distances would meet the same channels again and again."""
    is_below = (torch.arange(outer * channels * inner) % inner >= inner // 2).float()  # the lower half of each map
    sums = nested_choice._sums(is_below, NestedWish(channels, inner, True, True, 0.5, 0.0))
    assert float(sums[:, 0].min()) >= 48
    assert 0.4 < float(sums[:, 1].sum() / sums[:, 0].sum()) < 0.6


def test_a_constant_channel_comes_back_exactly():
    flat = torch.cat([torch.full((500,), 3.7), torch.randn(500)])
    wish = NestedWish(2, 500, True, False, 0.5, 0.0)
    out = torch.empty(10_000, dtype=torch.uint8)
    used = nested_choice.pack_nested(flat, wish, out)
    restored = torch.empty(1000)
    nested_choice.unpack_nested(out[:used], restored)
    assert torch.equal(restored[:500], flat[:500])
    assert not torch.equal(restored[500:], flat[500:])


def test_a_mean_far_beyond_the_step_makes_the_channel_exact():
    flat = (torch.randn(2000) * 1e-3 + 10_000.0).to(torch.float32)
    out = torch.empty(20_000, dtype=torch.uint8)
    used = nested_choice.pack_nested(flat, NestedWish(1, 1, True, False, 0.1, 0.0), out)
    restored = torch.empty(2000)
    nested_choice.unpack_nested(out[:used], restored)
    assert torch.equal(restored, flat)


def test_zeros_take_next_to_nothing():
    out = torch.empty(200_000, dtype=torch.uint8)
    assert nested_choice.pack_nested(torch.zeros(40_000), COARSE, out) < 200
