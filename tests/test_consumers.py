"""Which function saves a tensor, and what of it backward reads: labels, asked for inside real calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from slimgrad.consumers import Call, role_of
from slimgrad.roles import UNKNOWN, Need


class Asker(TorchFunctionMode):
    """Asks for the role of everything that is saved inside it."""

    def __init__(self):
        super().__init__()
        self.call, self.roles = None, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.call = Call(func, args, kwargs)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.call = None

    def pack(self, tensor):
        self.roles.append(role_of(tensor, self.call))
        return tensor.detach()


def roles_in(function):
    asker = Asker()
    with torch.autograd.graph.saved_tensors_hooks(asker.pack, lambda tensor: tensor), asker:
        function()
    return {role.name for role in asker.roles}, {role.need for role in asker.roles}


X = torch.randn(2, 4, 8, 8, requires_grad=True)
MADE = X * 1.0
CONV, LINEAR, NORM = nn.Conv2d(4, 4, 3), nn.Linear(8, 8), nn.BatchNorm2d(4)

CASES = {
    "conv": (lambda: CONV(MADE), "conv input", Need.VALUES),
    "functional conv": (lambda: F.conv2d(MADE, CONV.weight), "conv input", Need.VALUES),
    "linear": (lambda: LINEAR(MADE), "linear input", Need.VALUES),
    "batch norm": (lambda: NORM(MADE), "batch norm input", Need.VALUES),
    "layer norm": (lambda: F.layer_norm(MADE, (8,)), "layer norm input", Need.VALUES),
    "relu": (lambda: torch.relu(MADE), "relu result", Need.SIGN),
    "relu in place": (lambda: F.relu_(MADE * 2), "relu result", Need.SIGN),
    "relu method": (lambda: MADE.relu(), "relu result", Need.SIGN),
    "max pool": (lambda: F.max_pool2d(MADE, 2), "pool indices", Need.INDEX),
    "max pool input": (lambda: F.max_pool2d(MADE, 2), "pool input", Need.SHAPE),
    "dropout": (lambda: F.dropout(MADE, 0.5), "dropout mask", Need.MASK),
    "gelu": (lambda: F.gelu(MADE), "gelu input", Need.TIGHT),
    "softmax": (lambda: torch.softmax(MADE, -1), "softmax result", Need.TIGHT),
    "log softmax": (lambda: F.log_softmax(MADE, -1), "log-softmax result", Need.TIGHT),
    "attention": (lambda: F.scaled_dot_product_attention(MADE, MADE, MADE), "attention query, key", Need.TIGHT),
    "parameter": (lambda: CONV(MADE), "parameter", Need.PARAMETER),
    "parameter of linear": (lambda: LINEAR(MADE), "parameter", Need.PARAMETER),
}


@pytest.mark.parametrize("case", CASES)
def test_role(case):
    function, name, need = CASES[case]
    names, needs = roles_in(function)
    assert name in names
    assert need in needs


@pytest.mark.parametrize("function", [lambda: MADE.sin(), lambda: MADE.pow(3), lambda: MADE * MADE, lambda: MADE.exp()])
def test_what_is_not_in_the_table_is_needed_bit_for_bit(function):
    _, needs = roles_in(function)
    assert needs == {Need.EXACT}


def test_outside_of_any_call_nothing_is_known():
    assert role_of(MADE, None) is UNKNOWN


def test_autocast_copies_of_weights_are_rebuilt():
    with torch.autocast("cpu", torch.bfloat16):
        _, needs = roles_in(lambda: LINEAR(MADE))
    assert Need.REBUILD in needs


def test_a_computed_weight_is_not_taken_for_an_input():
    weight = CONV.weight * 2
    names, needs = roles_in(lambda: F.conv2d(MADE, weight))
    assert needs == {Need.VALUES, Need.EXACT}
    assert "conv input" in names
