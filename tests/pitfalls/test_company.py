"""Pitfalls about other users of the same machinery: nested hooks, checkpointing, torch.func, tensor subclasses."""

from __future__ import annotations

import warnings

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, kept_bytes, random, same
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)


def block(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 4, 3, padding=1))


def check_outer_hooks(attach):
    model = block()
    x = random(4, 4, 24, 24)
    plain = gradients(model(x).square().sum(), x, model)
    outer_calls = []
    with attach(model, bound=EXACT), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with saved_tensors_hooks(lambda t: outer_calls.append(t.shape) or t.detach(), lambda t: t):
            loss = model(x).square().sum()
        n_outside = len(outer_calls)  # the square outside the model is theirs in any case
        slim = gradients(loss, x, model)
    assert same(slim, plain)
    assert n_outside > 1 or any("hooks" in str(w.message) for w in caught)


def test_16_hooks_around_ours_are_not_silently_switched_off():
    """Only the innermost pair runs: hooks that surround an attached model are called too, or their user is warned."""
    check_outer_hooks(slimgrad.attach)
    goes_red(check_outer_hooks, naive.detached)


def test_16_hooks_within_ours_keep_working():
    """save_on_cpu inside an attached model takes its part, we take the rest."""
    first, second = block(0), block(1)
    packed = []

    def forward(x):
        y = first(x)
        with saved_tensors_hooks(lambda t: packed.append(t.shape) or t.detach().clone(), lambda t: t):
            y = second(y)
        return first(y)

    model = Calls(forward, first=first, second=second)
    x = random(4, 4, 24, 24)
    plain = gradients(model(x).square().sum(), x, model)
    n_packed = len(packed)
    with slimgrad.attach(model, bound=EXACT):
        assert same(gradients(model(x).square().sum(), x, model), plain)
    assert len(packed) == 2 * n_packed


def test_16_a_session_within_a_session():
    """A part of an attached model may be attached on its own, with another bound."""
    model = nn.Sequential(block(0), block(1))
    x = random(4, 4, 24, 24)
    plain = gradients(model(x).square().sum(), x, model)
    with slimgrad.attach(model, bound=EXACT), slimgrad.attach(model[1], bound=EXACT):
        assert same(gradients(model(x).square().sum(), x, model), plain)
    assert same(gradients(model(x).square().sum(), x, model), plain)


@pytest.mark.parametrize("policy", [slimgrad.Compress(), slimgrad.Recompute(), slimgrad.Budget("90%")], ids=repr)
@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_forward_is_left_alone(bound, policy):
    """Under torch.jit.trace sizes and addresses are values of the trace, and what hooks compute becomes part of it."""
    model, x = nn.Sequential(block(0), nn.BatchNorm2d(4), nn.ReLU(), block(1)).eval(), random(4, 4, 24, 24, grad=False)
    plain = model(x)
    with slimgrad.attach(model, bound=bound, policy=policy, min_bytes=0) as session:
        traced = torch.jit.trace(model, x)
        assert "inside torch.jit.trace" in session.report().to_dict()["skipped"]
        model(x).sum().backward()
        assert session.report().to_dict()["last_step"]["saved_in"] > 0
    assert torch.equal(traced(x), plain)
    assert "detach" not in str(traced.inlined_graph)


class Checkpointed(nn.Module):
    """Two blocks, the second recomputed in backward; its inputs go in by position, by name, in a list, or unseen."""

    def __init__(self, use_reentrant, passing="position"):
        super().__init__()
        self.first, self.second = block(0), block(1)
        self.use_reentrant, self.passing = use_reentrant, passing

    def forward(self, x):
        y = self.first(x)
        run = {"use_reentrant": self.use_reentrant}
        if self.passing == "name":
            return checkpoint(lambda *, value: self.second(value), value=y, **run)
        if self.passing == "closure":
            return checkpoint(lambda: self.second(y), **run)
        if self.passing == "list":
            return checkpoint(lambda values: self.second(values[0][0]), [[y]], **run)
        return checkpoint(self.second, y, **run)


def check_checkpoint(attach, model, where, bound):
    x = random(4, 4, 24, 24)
    plain = gradients(model(x).square().sum(), x, model)
    with attach(getattr(model, where) if where else model, bound=bound) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            assert same(gradients(model(x).square().sum(), x, model), plain)
        with session.recording():
            assert same(gradients(model(x).square().sum(), x, model), plain)


@pytest.fixture
def backward_like_gradients(monkeypatch):
    """Reentrant checkpointing refuses torch.autograd.grad: get the gradients by backward() there."""

    def by_backward(loss, x, model):
        leaves = [x, *model.parameters()]
        for leaf in leaves:
            leaf.grad = None
        loss.backward()
        return [leaf.grad for leaf in leaves]

    monkeypatch.setitem(globals(), "gradients", by_backward)


@pytest.mark.parametrize("where", ["", "second"], ids=["hooks_outside", "hooks_inside"])
def test_19_reentrant_checkpoint(where, backward_like_gradients):
    """Hooks outside see the boundary only; hooks inside see nothing in forward and everything in the recomputation."""
    check_checkpoint(slimgrad.attach, Checkpointed(True), where, EXACT)
    goes_red(check_checkpoint, naive.lossy_unless_parameter_class, Checkpointed(True), where, COARSE)


@pytest.mark.parametrize("passing", ["position", "name", "closure", "list"])
@pytest.mark.parametrize("where", ["", "second"], ids=["hooks_outside", "hooks_inside"])
def test_20_checkpoint_without_reentry(where, passing):
    """Inputs given by name, in a list or by closure are invisible to hooks; gradients must be right all the same."""
    check_checkpoint(slimgrad.attach, Checkpointed(False, passing), where, EXACT)
    goes_red(check_checkpoint, naive.lossy_unless_parameter_class, Checkpointed(False, passing), where, COARSE)


def check_checkpoint_not_defeated(attach):
    model = Checkpointed(False)
    x = random(4, 4, 24, 24)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = attach(model.second, bound=EXACT)
        y = model(x)
        kept = kept_bytes(session)
    assert kept < x.nbytes or any("checkpoint" in str(w.message) for w in caught)
    y.sum().backward()
    session.detach()


def test_20_hooks_inside_a_checkpoint_do_not_defeat_it():
    """A pair entered inside replaces checkpoint's own: everything is stored again, and nobody notices."""
    check_checkpoint_not_defeated(slimgrad.attach)
    goes_red(check_checkpoint_not_defeated, naive.detached)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch.jit inside torch.func
def test_23_functional_transforms_are_refused_with_advice():
    """torch.func.grad and its family cannot run under hooks: say so, say what to type, and work when paused."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    parameters = dict(model.named_parameters())
    x = random(32, 8, grad=False)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    plain = torch.func.grad(loss)(parameters, x)
    session = slimgrad.attach(model, bound=EXACT)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian):
        with pytest.raises((slimgrad.SlimgradError, RuntimeError), match=r"torch\.func[\s\S]*paused\(\)"):
            transform(loss)(parameters, x)
    with session.paused():
        paused = torch.func.grad(loss)(parameters, x)
    assert same(list(paused.values()), list(plain.values()))
    model(x).sum().backward()
    session.detach()


def test_23_vmap_works():
    """vmap without differentiation is no problem under hooks."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    x = random(32, 8, grad=False)
    plain = model(x)
    with slimgrad.attach(model, bound=EXACT):
        torch.testing.assert_close(torch.func.vmap(model)(x), plain)


class Wrapped(torch.Tensor):
    """A tensor without a storage of its own, like DTensor and quantised weights."""

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, requires_grad=requires_grad
        )

    def __init__(self, inner, requires_grad=False):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, cls) else t, (args, kwargs or {}))
        return tree_map(lambda t: cls(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


def check_subclass(attach):
    x = Wrapped(random(64, 64, grad=False), requires_grad=True)
    weight = nn.Parameter(random(64, 64, seed=1))
    model = Calls(lambda x: F.relu(torch.sin(x @ weight) @ weight), weight=weight)
    plain = [g.inner for g in gradients(model(x).sum(), x, model)]
    with attach(model, bound=EXACT):
        slim = [g.inner for g in gradients(model(x).sum(), x, model)]
    assert same(slim, plain)


def test_24_wrapper_subclasses_pass_through():
    """A wrapper subclass has no storage: its pointer is 0 or raises, and every one of them has the same."""
    check_subclass(slimgrad.attach)
    goes_red(check_subclass, naive.keyed_by_pointer)


def test_24_sparse_nested_and_meta_tensors_pass_through():
    """What is not dense memory on a device is left alone."""
    sparse = random(64, 64, grad=False).relu().to_sparse()
    model = Calls(lambda w: torch.sparse.mm(sparse, w.exp()))
    w = random(64, 64)
    plain = gradients(model(w).sum(), w)
    with slimgrad.attach(model, bound=COARSE):
        assert same(gradients(model(w).sum(), w), plain)

    ragged = torch.nested.nested_tensor([torch.ones(3, 64), torch.ones(5, 64)], layout=torch.jagged, requires_grad=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    plain = gradients(model(ragged).values().sum(), model)
    with slimgrad.attach(model, bound=EXACT):
        assert same(gradients(model(ragged).values().sum(), model), plain)

    model = block().to("meta")
    with slimgrad.attach(model, bound=COARSE):
        model(torch.zeros(2, 4, 64, 64, device="meta")).sum().backward()
    assert model[0].weight.grad.is_meta
