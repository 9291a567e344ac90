"""Roles: what two savers of one storage need together, and flags that survive being stored as one bit."""

from __future__ import annotations

import math

import pytest
import torch

from slimgrad.roles import EXACT, UNKNOWN, Comparison, Need, Role, flag_role, merged, role_from_dict, role_to_dict

VALUES = Role("conv input", Need.VALUES)
TIGHT = Role("gelu input", Need.TIGHT, scale=0.25)
CENTRED = Role("norm input", Need.VALUES, axis=1, is_centred=True)
SIGNED = Role("abs input", Need.VALUES, keeps_sign=True)


def test_the_tighter_scale_wins():
    assert merged(VALUES, TIGHT).scale == 0.25
    assert merged(TIGHT, VALUES).need is Need.TIGHT


def test_a_need_for_every_bit_wins_over_everything():
    assert merged(VALUES, EXACT).is_exact
    assert merged(EXACT, VALUES).is_exact


def test_signs_rule_out_a_centre():
    together = merged(CENTRED, SIGNED)
    assert together.keeps_sign
    assert not together.is_centred
    assert together.axis is None


def test_merging_gives_the_same_object_each_time():
    assert merged(VALUES, CENTRED) is merged(VALUES, CENTRED)


def test_absolute_and_relative_bounds_have_no_common_code():
    assert merged(VALUES, Role("log-softmax", Need.TIGHT, absolute=0.2)).is_exact


@pytest.mark.parametrize("test", list(Comparison))
@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (-1.0, 1.0), (0.0, 6.0), (-math.inf, 2.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stand_ins_give_the_flags_again(test, low, high, dtype):
    role = flag_role("test", test, low, high, dtype)
    if role is UNKNOWN:
        assert test is Comparison.ABOVE, "x > low cannot be told where low is minus infinity"
        return
    x = torch.tensor([-7.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 6.0, 9.0], dtype=dtype)
    bits = role.flag.bits(x)
    restored = torch.where(bits, role.flag.if_set, role.flag.if_not).to(dtype)
    assert torch.equal(role.flag.bits(restored), bits)


def test_a_bound_that_the_dtype_cannot_hold_is_unknown():
    assert flag_role("hardtanh", Comparison.OUTSIDE, -0.1, 0.1, torch.bfloat16) is UNKNOWN


def test_roles_of_values_survive_a_checkpoint():
    again = role_from_dict(role_to_dict(CENTRED))
    assert (again.name, again.need, again.axis, again.is_centred) == ("norm input", Need.VALUES, 1, True)
