"""What a node tells about the function that reads a saved tensor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from slimgrad.readers import _n_nonzero, read
from slimgrad.streams import leaf_of


def reader(result: torch.Tensor, size: torch.Size, names: dict | None = None, grad: torch.Tensor | None = None):
    found = []
    node = result.grad_fn
    node.register_hook(lambda inputs, outputs: found.append(read(node, size, inputs, outputs, names or {})))
    result.backward(torch.ones_like(result) if grad is None else grad)
    return found[0]


def test_conv():
    layer = nn.Conv2d(4, 8, (3, 1), stride=2, padding=(1, 0), groups=2)
    x = torch.randn(5, 4, 9, 7, requires_grad=True)
    grad = torch.randn_like(layer(x))
    one, leaf = reader(layer(x), x.shape, {id(layer.weight): "w"}, grad)
    assert leaf is layer.weight
    assert (one.function, one.weight, one.batch) == ("conv2d", "w", 5)
    assert (one.in_channels, one.out_channels, one.groups, one.taps, one.stride, one.places) == (4, 8, 2, 3, 4, 20)
    assert one.overlap == pytest.approx((5 + 4 + 4) / 15)
    assert one.out_grad2 == pytest.approx(float(grad.square().sum()))
    assert one.out_grad_peak == pytest.approx(float(grad.abs().flatten(1).amax(1).mean()))
    assert one.weight_grad2 == pytest.approx(float(layer.weight.grad.square().sum()))
    assert one.weight_grad_abs == pytest.approx(float(layer.weight.grad.abs().mean()))
    assert one.in_grad2 == pytest.approx(float(x.grad.square().sum()))


def test_transposed_conv():
    layer = nn.ConvTranspose1d(6, 4, 5, stride=2)
    one, _ = reader(layer(torch.randn(2, 6, 7)), torch.Size([2, 6, 7]))
    assert (one.function, one.in_channels, one.out_channels, one.taps) == ("conv_transpose1d", 6, 4, 5)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    layer = nn.Linear(6, 3, bias=bias)
    one, leaf = reader(layer(torch.randn(5, 6)), torch.Size([5, 6]), {id(layer.weight): "w"})
    assert leaf is layer.weight
    assert (one.function, one.weight, one.batch, one.in_channels, one.out_channels) == ("linear", "w", 5, 6, 3)


def test_a_product_of_two_activations_is_no_linear_layer():
    a, b = torch.randn(3, 4, requires_grad=True) * 2, torch.randn(4, 5, requires_grad=True) * 2
    one, leaf = reader(a @ b, a.shape)
    assert leaf is None
    assert (one.function, one.weight) == ("mm", "")


def test_batch_norm_by_channel():
    layer = nn.BatchNorm2d(3)
    x, grad = torch.randn(4, 3, 5, 5) * 2, torch.randn(4, 3, 5, 5)
    grad[:, 1, 0] = 0.0
    one, _ = reader(layer(x), x.shape, None, grad)
    norm = one.norm
    assert one.function == "batch_norm"
    assert norm.inv_std == pytest.approx((x.var((0, 2, 3), unbiased=False) + layer.eps).rsqrt().tolist(), rel=1e-5)
    assert norm.weight_grad == pytest.approx(layer.weight.grad.tolist())
    assert norm.peak_input == pytest.approx(x.abs().amax((0, 2, 3)).tolist())
    assert norm.peak_grad == pytest.approx(grad.abs().amax((0, 2, 3)).tolist())
    assert norm.n_grads == (100, 80, 100)


def test_batch_norm_with_running_statistics_has_no_channels():
    layer = nn.BatchNorm2d(3).eval()
    x = torch.randn(4, 3, 5, 5, requires_grad=True)
    assert reader(layer(x), x.shape)[0].norm is None


def test_another_function_has_energies_alone():
    x = torch.randn(4, 6, requires_grad=True)
    one, leaf = reader(F.gelu(x), x.shape)
    assert (one.function, leaf, one.taps) == ("gelu", None, 1)
    assert one.in_grad2 == pytest.approx(float(x.grad.square().sum()))


def test_a_leaf_is_found_through_views_and_casts_only():
    weight = nn.Parameter(torch.randn(3, 4))
    x = torch.randn(5, 4)
    assert leaf_of((x @ weight.t().double().float()).grad_fn, 1) is weight
    assert leaf_of((x @ (weight * 2).t()).grad_fn, 1) is None
    assert leaf_of((x @ weight.t()).grad_fn, 0) is None


def test_gradients_that_are_no_numbers_are_not_counted():
    values = torch.tensor([[[1.0, 0.0, -2.0], [math.nan, 1.0, 0.0]]])
    assert _n_nonzero(values, [0, 2]).tolist() == [2.0, 1.0]
    assert _n_nonzero(values.half(), [0, 2]).tolist() == [2.0, 1.0]
