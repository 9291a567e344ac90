"""What an error of a saved tensor makes of a node's gradients, and that looking leaves everything as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.bounds.base import Request
from slimgrad.local_errors import LINEAR_RULES, difference, exactly, minus, read_by
from slimgrad.streams import Streams

BOUND = slimgrad.Relative(0.5)
ORIGINAL = Request(errors=None)


@pytest.fixture
def noted():
    """Return a maker of the node of a layer's result, of the one storage that it reads, and of what it was."""
    sessions = []

    def make(layer: nn.Module, *size: int, bound=BOUND):
        torch.manual_seed(0)
        x = torch.randn(*size)
        session = slimgrad.attach(layer, bound=bound, min_bytes=64)
        sessions.append(session)
        session.tuning.meter.begin(1, ORIGINAL)
        node = layer(x * torch.ones((), requires_grad=True)).grad_fn
        ((stored, slots),) = read_by(node, session.tuning.meter._streams)
        assert read_by(node, Streams({})) == []  # of another measurement
        return node, stored, slots, x

    yield make
    for session in sessions:
        session.detach()


def test_a_node_names_each_storage_once_with_all_of_its_slots(noted):
    class Gram(nn.Module):
        def forward(self, x):
            return x @ x.T

    node, _, slots, _ = noted(Gram(), 40, 40)
    assert sorted(slot for slot, _ in slots) == ["mat2", "self"]
    assert all((type(node).__name__, slot) in LINEAR_RULES for slot, _ in slots)


def test_what_is_not_noted_is_not_named():
    x = torch.randn(40, 40, requires_grad=True)
    assert read_by((x @ x).grad_fn, Streams({})) == []


@pytest.mark.parametrize("order", [None, torch.channels_last], ids=["contiguous", "channels last"])
def test_a_difference_is_what_is_restored_less_what_was(noted, order):
    layer = nn.Conv2d(4, 4, 3) if order is None else nn.Conv2d(4, 4, 3).to(memory_format=order)
    node, stored, ((slot, saved),), x = noted(layer, 8, 4, 16, 16)
    found = difference(node, slot, stored, saved)
    restored = node._saved_input.detach()
    assert 0.0 < float((restored - x).abs().max()) <= 0.5
    assert torch.equal(found, restored - x)


def test_within_the_context_saves_are_the_original_and_afterwards_what_is_stored(noted):
    node, stored, slots, x = noted(nn.Conv2d(4, 4, 3), 8, 4, 16, 16)
    before = node._saved_input.detach().clone()
    with exactly(stored, [saved for _, saved in slots]):
        assert torch.equal(node._saved_input, x)
    assert torch.equal(node._saved_input, before)
    with pytest.raises(ZeroDivisionError), exactly(stored, [saved for _, saved in slots]):
        1 / 0  # noqa: B018
    assert torch.equal(node._saved_input, before)


@pytest.mark.parametrize("make", ["of its own", "of another gradient", "of another dtype", "sparse"])
def test_minus_takes_no_memory_that_somebody_else_reads(make):
    after, before = torch.arange(4.0), torch.ones(4)
    others: tuple[torch.Tensor, ...] = ()
    if make == "of another gradient":
        others = (before.view(2, 2),)
    elif make == "of another dtype":
        before = before.double()
    elif make == "sparse":
        after, before = after.to_sparse(), before.to_sparse()
    result = minus(after, before, others)
    assert torch.equal(result.to_dense().float(), torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    is_reused = make == "of its own"
    assert (result is before) is is_reused
    if not is_reused:
        assert torch.equal(before.to_dense().float(), torch.ones(4))


def test_minus_sums_over_what_was_broadcast():
    after, before = torch.tensor([5.0, 7.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(minus(after, before, ()), torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize("rule", sorted(LINEAR_RULES), ids=" ".join)
def test_linear_rules_give_the_error_of_the_gradient_on_their_edge(rule):
    kind, slot = rule
    torch.manual_seed(0)
    x, w, bias = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in [(6, 5), (5, 7), (7,)])
    if kind == "ConvolutionBackward0":
        x, w, bias = (
            torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in [(2, 3, 8), (4, 3, 3), (4,)]
        )
        function = torch.nn.functional.conv1d
        inputs = {"input": x}
    elif kind == "MmBackward0":
        function, inputs = (lambda x, w, _: x @ w), {"self": x, "mat2": w}
    else:
        function, inputs = (lambda x, w, b: torch.addmm(b, x, w, alpha=0.5)), {"mat1": x, "mat2": w}
    result = function(x, w, bias)
    grad, error = torch.randn_like(result), torch.randn_like(inputs[slot])
    edge, error_of = LINEAR_RULES[rule]
    assert type(result.grad_fn).__name__ == kind
    found = error_of(result.grad_fn, grad, error)
    moved = {name: tensor + error if name == slot else tensor for name, tensor in inputs.items()}
    operands = (moved["input"], w, bias) if "input" in moved else (*moved.values(), bias)
    operands = [tensor.detach().requires_grad_() for tensor in operands]
    other = function(*operands)
    of_edge = [operands[0], operands[1], operands[2]] if kind != "AddmmBackward0" else [operands[2], *operands[:2]]
    mine = [x, w, bias] if kind != "AddmmBackward0" else [bias, x, w]
    (changed,) = torch.autograd.grad(other, of_edge[edge], grad)
    (exact,) = torch.autograd.grad(result, mine[edge], grad)
    assert torch.allclose(found, changed - exact)
