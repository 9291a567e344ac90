"""Products: each gradient by itself equals autograd's, and sketches are sketches of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from slimgrad.products import N_SUMS, WORTH_IT, Signs, leaf_of, product_of

WIDE = 2 * WORTH_IT
LAYERS = {
    "conv": (lambda: nn.Conv2d(3, WIDE, 3, padding=1), (4, 3, 7, 6)),
    "strided": (lambda: nn.Conv2d(3, WIDE, 3, stride=2, dilation=2, bias=False), (4, 3, 9, 9)),
    "1-D": (lambda: nn.Conv1d(3, WIDE, 5), (4, 3, 20)),
    "3-D": (lambda: nn.Conv3d(2, WIDE, 2), (2, 2, 4, 5, 3)),
    "depthwise": (lambda: nn.Conv2d(WIDE, WIDE, 3, groups=WIDE), (4, WIDE, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(WIDE, 5, 3, stride=2), (4, WIDE, 5, 5)),
    "narrow": (lambda: nn.Linear(7, WORTH_IT - 1), (9, 7)),
    "linear": (lambda: nn.Linear(7, WIDE), (9, 7)),
    "linear without bias": (lambda: nn.Linear(7, WIDE, bias=False), (9, 7)),
    "linear of rows": (lambda: nn.Linear(7, WIDE), (2, 9, 7)),
}
SKETCHED = {"conv", "strided", "1-D", "3-D", "linear", "linear without bias", "linear of rows"}


def scene(name: str):
    """Return the node of a layer's result, its input as the node reads it, its weight, and another gradient."""
    torch.manual_seed(0)
    make, size = LAYERS[name]
    layer, x = make().double(), torch.randn(size, dtype=torch.float64, requires_grad=True)
    node = layer(x).grad_fn
    while product_of(node) is None:  # views
        ((node, _),) = node.next_functions
    result = node._input_metadata[0]
    return product_of(node), layer, x, torch.randn(result.shape, dtype=torch.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_each_gradient_is_what_the_node_makes_of_it(name):
    product, _, _, error = scene(name)
    found = [None] * len(product.node.next_functions)
    found[product.input] = product.on_input(error, product.x)
    found[product.weight] = product.on_weight(error, product.x)
    if product.bias is not None and product.node.next_functions[product.bias][0] is not None:
        found[product.bias] = product.on_bias(error)
    for (following, slot), mine, exact in zip(product.node.next_functions, found, product.node(error), strict=True):
        assert (mine is None) == (exact is None)
        if exact is not None:
            shape = torch.Size(following._input_metadata[slot].shape)
            assert torch.allclose(mine.sum_to_size(shape), exact.sum_to_size(shape))


@pytest.mark.parametrize("name", sorted(SKETCHED))
def test_a_sketch_is_that_of_the_gradient(name):
    product, layer, _, error = scene(name)
    signs = Signs(3)
    gradient = product.node(error)[product.weight]
    rows = gradient if name not in ("linear", "linear without bias", "linear of rows") else gradient.mT
    assert product.parameter is layer.weight
    assert rows.shape == layer.weight.shape
    expected = signs.of(WIDE, error).mT @ rows.flatten(1)
    assert expected.shape[0] == N_SUMS
    assert torch.allclose(product.sketch(error, product.x, signs), expected)
    assert torch.allclose(product.sketch_of(gradient, signs), expected)
    assert torch.allclose(signs.sketch(rows), expected)


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - SKETCHED))
def test_what_is_narrow_or_keeps_channels_apart_is_not_sketched(name):
    assert scene(name)[0].parameter is None


def test_energies_of_sketches_are_right_on_average():
    torch.manual_seed(0)
    gradient = torch.randn(WIDE, 5) @ torch.randn(5, 30)  # of rank 5
    energies = torch.stack([Signs(seed).sketch(gradient).square().sum() for seed in range(400)])
    true = gradient.square().sum()
    assert float(energies.mean() / true) == pytest.approx(1.0, abs=0.05)
    assert 0.1 < float(energies.std() / true) < 0.4


def test_signs_are_their_own_and_move_no_random_state():
    before = torch.get_rng_state()
    like = torch.zeros(1)
    first, same, other = Signs(1).of(64, like), Signs(1).of(64, like), Signs(2).of(64, like)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.allclose(first.square() * N_SUMS, torch.ones(64, N_SUMS))


def _weight_of(kind: str, x: torch.Tensor) -> torch.Tensor:
    w = torch.randn(4, 4, requires_grad=True)
    if kind == "computed":
        return x @ (w * 2.0)
    if kind == "frozen":
        return x @ w.detach()
    if kind == "scaled":
        return torch.addmm(torch.zeros(4), x, w, alpha=0.5)
    if kind == "complex":
        return x.to(torch.complex64) @ torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
    return F.relu(x)


@pytest.mark.parametrize("kind", ["computed", "frozen", "scaled", "complex", "no product"])
def test_what_is_no_product_of_an_input_and_a_parameter_is_none(kind):
    assert product_of(_weight_of(kind, torch.randn(3, 4, requires_grad=True)).grad_fn) is None


def test_a_leaf_is_found_through_views_and_casts_and_nothing_computed():
    w = torch.randn(4, 4, requires_grad=True)
    node = (torch.randn(3, 4).double() @ w.t().double()).grad_fn
    assert leaf_of(node, 1) is w
    assert leaf_of((torch.randn(3, 4) @ (w * 2.0)).grad_fn, 1) is None
    assert leaf_of(node, 0) is None
    assert leaf_of(node, None) is None


def test_sketches_of_half_floats_do_not_overflow():
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 4096).half(), torch.randn(8, 16).half()
    product = product_of(layer(x.requires_grad_()).grad_fn)
    error = torch.full((8, 4096), 3000.0).half()
    assert torch.isfinite(product.sketch(error, product.x, Signs(0))).all()
    assert torch.isfinite(Signs(0).sketch(torch.full((4096, 16), 3000.0).half())).all()
