"""A node called as it would run if nothing were coded: what is left is the error, of its own and of what arrived."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.at_once import CALLED, SKETCHED, compare, without_errors
from slimgrad.bounds.base import Request
from slimgrad.local_errors import read_by
from slimgrad.products import WORTH_IT, Signs
from slimgrad.streams import Streams, call

STREAM = "error"
LAYERS = {
    "conv": (lambda: nn.Conv2d(3, WORTH_IT, 3), (4, 3, 9, 9)),
    "linear": (lambda: nn.Linear(20, WORTH_IT), (30, 20)),
    "narrow": (lambda: nn.Linear(20, 3), (30, 20)),
    "gelu": (nn.GELU, (30, 20)),
}


def run(layer: nn.Module, x: torch.Tensor, wrong: torch.Tensor | None, signs: Signs | None):
    """Return the errors that leave the layer's node, by edge, when `wrong` has arrived; and those of the weight."""
    with slimgrad.attach(layer, bound=slimgrad.Relative(0.5), min_bytes=64) as session:
        session.tuning.meter.begin(1, Request(errors=None))
        node = layer(x * torch.ones((), requires_grad=True)).grad_fn
        grad = torch.randn(torch.Size(node._input_metadata[0].shape))
        streams = Streams({id(parameter): name for name, parameter in layer.named_parameters()}, signs)
        added = {}
        streams.add = lambda following, slot, stream, error, layers=1: added.update(  # pyright: ignore
            {(id(following), slot): error} if error is not None and following is not None else {}
        )
        streams._wait = lambda node, edge, stream, error: streams.add(*node.next_functions[edge], stream, error)
        streams.take = lambda node, stream, n_slots: [wrong]  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():  # as in hooks
            without_errors(node, (grad,), read_by(node, session.tuning.meter._streams), streams, STREAM)
            coded = call(node, (grad,))
            compare(node, coded, (grad,), streams)
        assert not node.metadata.keys() & {CALLED, SKETCHED}
    plain = layer(x * torch.ones((), requires_grad=True)).grad_fn
    with torch.no_grad():
        exact = call(plain, (grad if wrong is None else grad - wrong,))
    true = {
        (id(following), slot): one - other
        for (following, slot), one, other in zip(node.next_functions, coded, exact, strict=True)
        if one is not None and other is not None
    }
    return true, added, streams


@pytest.mark.parametrize("arrives", [False, True], ids=["nothing has arrived", "errors have"])
@pytest.mark.parametrize("is_rough", [False, True], ids=["exact", "rough"])
@pytest.mark.parametrize("name", LAYERS)
def test_what_leaves_the_node_is_the_difference_to_an_exact_run(name, is_rough, arrives):
    torch.manual_seed(0)
    make, size = LAYERS[name]
    layer, x = make(), torch.randn(size)
    wrong = 0.1 * torch.randn_like(layer(x)) if arrives else None
    signs = Signs(1) if is_rough else None
    true, added, streams = run(layer, x, wrong, signs)
    sketch = streams._sketched.get((STREAM, "weight"))
    assert (sketch is not None) == (is_rough and name in ("conv", "linear"))
    energies = [float(error.square().sum()) for error in true.values()]
    assert max(energies) > 0
    missing = 0
    for key, error in true.items():
        if key in added:
            assert torch.allclose(added[key].sum_to_size(error.shape), error, rtol=1e-3, atol=1e-4)
        elif sketch is not None and error.numel() == layer.weight.numel():
            rows = error if name == "conv" else error.mT
            assert torch.allclose(sketch, signs.sketch(rows), rtol=1e-3, atol=1e-3)
        else:
            assert float(error.abs().max()) < 1e-4  # a gradient that nothing coded or wrong takes part in
            missing += 1
    assert missing <= 2
