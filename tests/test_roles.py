"""Roles: what two savers of one storage need together, and flags that survive being stored as one bit."""

from __future__ import annotations

import math

import pytest
import torch

from slimgrad.roles import (
    EXACT,
    UNKNOWN,
    Comparison,
    Need,
    Role,
    flag_role,
    merged,
    role_from_dict,
    role_to_dict,
    with_flags,
    with_zeros,
)

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
        assert test in (Comparison.ABOVE, Comparison.NOT_BELOW), "no value is below minus infinity"
        return
    x = torch.tensor([-7.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 6.0, 9.0], dtype=dtype)
    bits = role.flag.bits(x)
    restored = torch.where(bits, role.flag.if_set, role.flag.if_not).to(dtype)
    assert torch.equal(role.flag.bits(restored), bits)


def test_a_bound_that_the_dtype_cannot_hold_is_unknown():
    assert flag_role("hardtanh", Comparison.BETWEEN, -0.1, 0.1, torch.bfloat16) is UNKNOWN


def test_roles_of_values_survive_a_checkpoint():
    again = role_from_dict(role_to_dict(CENTRED))
    assert (again.name, again.need, again.axis, again.is_centred) == ("norm input", Need.VALUES, 1, True)


SPECIAL = [-math.inf, -3.0, -1.0, -0.0, 0.0, 1e-45, 0.5, 1.0, 2.999, 3.0, 6.0, 7.0, math.inf, math.nan]
INF = math.inf
BACKWARDS = {
    "relu": (Comparison.NOT_BELOW, 0.0, INF, lambda g, x: torch.ops.aten.threshold_backward(g, x, 0)),
    "hardtanh": (Comparison.BETWEEN_NUMBERS, -1.0, 1.0, lambda g, x: torch.ops.aten.hardtanh_backward(g, x, -1, 1)),
    "relu6": (Comparison.BETWEEN_NUMBERS, 0.0, 6.0, lambda g, x: torch.ops.aten.hardtanh_backward(g, x, 0, 6)),
    "hardsigmoid": (Comparison.BETWEEN, -3.0, 3.0, torch.ops.aten.hardsigmoid_backward),
    "leaky": (Comparison.ABOVE, 0.0, INF, lambda g, x: torch.ops.aten.leaky_relu_backward(g, x, 0.1, False)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BACKWARDS)
def test_stand_ins_give_the_gradient_of_the_values(name, dtype):
    """Bounds, infinities, signed zeros and NaN included: torch's own backward decides what a flag has to say."""
    test, low, high, backward = BACKWARDS[name]
    flag = flag_role(name, test, low, high, dtype).flag
    special = SPECIAL[1:-2] if test is Comparison.BETWEEN_NUMBERS else SPECIAL
    x = torch.tensor(special, dtype=dtype).repeat(9)  # long enough for the vectorised loop and its tail
    gradient = torch.linspace(1, 2, x.numel(), dtype=dtype)
    stand_ins = torch.where(flag.bits(x), flag.if_set, flag.if_not).to(dtype)
    assert torch.equal(backward(gradient, stand_ins), backward(gradient, x))


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-INF, 2.0), (-1.0, INF), (2.0, 3.0)], ids=str)
def test_stand_ins_of_clamp(bounds):
    low, high = bounds
    flag = flag_role("clamp", Comparison.WITHIN, low, high, torch.float32).flag
    x = torch.tensor(SPECIAL, requires_grad=True)
    stand_in = torch.where(flag.bits(x.detach()), flag.if_set, flag.if_not).requires_grad_()
    limits = [None if math.isinf(bound) else bound for bound in bounds]
    for tensor in (x, stand_in):
        tensor.clamp(*limits).sum().backward()
    assert torch.equal(x.grad, stand_in.grad)


def test_hardtanh_has_no_flags_for_nan():
    """For NaN torch's own gradient depends on the position of the value, so the value itself has to come back."""
    flag = flag_role("hardtanh", Comparison.BETWEEN_NUMBERS, -1.0, 1.0, torch.float32).flag
    assert flag.bits(torch.tensor([0.0, math.nan])) is None
    assert flag.bits(torch.tensor([0.0, math.inf])).tolist() == [True, False]


def test_only_a_threshold_at_zero_is_a_sign():
    assert flag_role("relu", Comparison.NOT_BELOW, 0.0, INF, torch.float32).flag.is_sign
    assert not flag_role("relu6", Comparison.BETWEEN_NUMBERS, 0.0, 6.0, torch.float32).flag.is_sign
    assert not flag_role("clamp", Comparison.WITHIN, 0.0, INF, torch.float32).flag.is_sign  # zero itself passes


ALL = [VALUES, TIGHT, CENTRED, SIGNED, Role("rows", Need.VALUES, row=64, is_centred=True), EXACT, UNKNOWN]


@pytest.mark.parametrize("first", ALL, ids=lambda role: role.name)
@pytest.mark.parametrize("second", ALL, ids=lambda role: role.name)
def test_a_merged_role_is_as_strict_as_both(first, second):
    both = merged(first, second)
    if both.need is Need.EXACT:
        return
    assert EXACT not in (first, second)
    assert both.scale <= min(first.scale, second.scale)
    assert both.keeps_sign == (first.keeps_sign or second.keeps_sign)
    assert not (both.keeps_sign and both.is_centred)
    assert (both.need is Need.TIGHT) == (Need.TIGHT in (first.need, second.need))


@pytest.mark.parametrize("first", ALL, ids=lambda role: role.name)
@pytest.mark.parametrize("second", ALL, ids=lambda role: role.name)
def test_merging_again_changes_nothing(first, second):
    """A third save of the same kind must not look like a new need: the tensor would be coded again."""
    both = merged(first, second)
    assert merged(both, second) is both
    assert merged(both, both) is both


def test_flags_make_a_centred_code_uncentred():
    role = with_flags(CENTRED)
    assert not role.is_centred and role.axis is None and not role.row
    assert with_flags(CENTRED) is role


def test_zeros_are_noted_once_and_only_for_values():
    sparse = with_zeros(CENTRED)
    assert sparse.is_sparse and sparse.is_centred
    assert with_zeros(sparse) is sparse
    assert merged(sparse, CENTRED) is sparse
    assert with_zeros(UNKNOWN) is UNKNOWN
