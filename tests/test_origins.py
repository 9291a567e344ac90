"""Origins: views, casts and copies are traced to the argument or parameter that they come from."""

from __future__ import annotations

import torch
from scenes import random
from torch import nn

from slimgrad.origins import (
    is_from,
    is_parameter,
    is_result,
    is_scaled,
    is_scaled_result,
    is_view_of_parameter,
    is_view_of_result,
    leaf_role,
)
from slimgrad.roles import PARAMETER, Need


def test_an_argument_is_found_through_views_and_casts():
    x = random(4, 8) * 1
    for tensor in (x, x.view(-1), x.t(), x[1:], x.to(torch.bfloat16), x.t().to(torch.bfloat16)[1:], x.clone()):
        assert is_from(tensor, x)
    assert not is_from(x + 0, x)
    assert not is_from(x, random(4, 8))
    assert not is_from(x, None)


def test_siblings_are_told_apart():
    """Two results of equal shape from the same input have different nodes."""
    x = random(4, 8)
    first, second = x * 2, x * 3
    assert is_from(first.bfloat16(), first) and not is_from(first.bfloat16(), second)


def test_a_leaf_argument_is_found_by_its_accumulator():
    leaf, other = random(4, 8), random(4, 8)
    assert is_from(leaf.to(torch.bfloat16), leaf)
    assert not is_from(leaf.to(torch.bfloat16), other)


def test_parameters_and_their_views():
    weight = nn.Parameter(random(4, 8))
    frozen = nn.Parameter(random(4, 8), requires_grad=False)
    assert is_view_of_parameter(weight) and is_view_of_parameter(weight.t()) and is_view_of_parameter(frozen.t())
    assert not is_view_of_parameter(weight * 1) and not is_view_of_parameter(random(4, 8))
    assert is_parameter(weight.to(torch.bfloat16)) and not is_parameter(weight * 1)


def test_a_cast_of_a_leaf_is_rebuilt_only_if_it_is_no_argument():
    weight = nn.Parameter(random(4, 8))
    cast = weight.to(torch.bfloat16)
    role = leaf_role(cast.t(), ())
    assert role is not None and role.need is Need.REBUILD and role.leaf is weight
    assert leaf_role(cast.t(), (cast,)) is None
    assert leaf_role(weight.t(), ()) is PARAMETER
    assert leaf_role(weight.clone(), ()) is None  # a clone is made to be changed
    assert leaf_role(weight.t().to(torch.bfloat16), ()) is None  # a copy of another layout
    assert leaf_role(weight * 1, ()) is None


def test_results_carry_their_node():
    x = random(4, 8)
    assert is_result(x.relu(), "ReluBackward0") and not is_result(x, "ReluBackward0")
    assert is_view_of_result(x.relu().view(-1), "ReluBackward0")
    assert not is_view_of_result(x.relu(), "ReluBackward0") and not is_view_of_result(x, "ReluBackward0")


def test_a_multiple_is_traced_to_its_factor():
    x, other = random(4, 8) + 1, random(4, 8) + 1
    for tensor in (x * 2, (x.t() * 2).expand(2, 8, 4), x * torch.rand(4, 8)):
        assert is_scaled(tensor, x) and not is_scaled(tensor, other)
    assert is_scaled_result(x.softmax(-1) * 2, "SoftmaxBackward0")
    assert not is_scaled_result(x.softmax(-1), "SoftmaxBackward0")
    assert not is_scaled(x * other, x), "whose factor it is cannot be told"
    assert not is_scaled(x, x) and not is_scaled(x + 1, x) and not is_scaled(x * 2, None)
