"""The hooks of one thread: installed around forwards that record, and gone afterwards, whatever happens."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import slimgrad

autograd = torch._C._autograd


def is_clean():
    return autograd._top_saved_tensors_default_hooks(True) is None and not _get_current_function_mode_stack()


class Picky(nn.Module):
    """Says whether hooks are installed while it runs, and raises on demand."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.error, self.saw_hooks = None, None

    def forward(self, x):
        self.saw_hooks = not is_clean()
        y = torch.relu(self.linear(x))
        if self.error is not None:
            raise self.error
        return y


@pytest.fixture
def model():
    return Picky()


@pytest.fixture
def session(model):
    with slimgrad.attach(model, bound=slimgrad.Exact(), min_bytes=0) as session:
        yield session
    assert is_clean()


def test_hooks_are_on_during_a_forward_and_off_after_it(model, session):
    model(torch.randn(32, 64))
    assert model.saw_hooks
    assert is_clean()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_installed_without_gradients(model, session, context):
    with context():
        model(torch.randn(32, 64))
    assert not model.saw_hooks


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["exception", "interrupt"])
def test_hooks_are_gone_after_an_error_or_by_the_next_forward(model, session, error):
    model.error = error
    with pytest.raises(type(error)):
        model(torch.randn(32, 64))
    model.error = None
    model(torch.randn(32, 64)).sum().backward()
    assert is_clean()


def test_a_pause_takes_the_hooks_away_and_gives_them_back(model, session):
    with session.recording():
        with session.paused():
            assert is_clean()
        assert not is_clean()
    assert is_clean()


def test_gradients_of_a_recorded_forward_are_those_of_a_plain_one(model, session):
    x = torch.randn(32, 64)
    model(x).sum().backward()
    recorded = model.linear.weight.grad.clone()
    model.zero_grad()
    with session.paused():
        model(x).sum().backward()
    assert torch.equal(recorded, model.linear.weight.grad)


class Chain(nn.Module):
    """Functions without modules: its own code saves all there is."""

    error = None

    def forward(self, x, repeats=1):
        self.listened = bool(_get_current_function_mode_stack())
        x = x.repeat(repeats, 1)
        for _ in range(3):
            x = nn.functional.gelu(x)
        if self.error is not None:
            raise self.error
        return x


@pytest.fixture
def chain():
    return Chain()


@pytest.fixture
def chained(chain):
    with slimgrad.attach(chain, bound=slimgrad.Relative(0.25)) as session:
        yield session
    assert is_clean()


def step(model, *args):
    model(*args).sum().backward()


def test_the_mode_rests_while_only_small_tensors_are_saved(chain, chained):
    heard = []
    for _ in range(3):
        step(chain, torch.randn(4, 8, requires_grad=True))
        heard.append(chain.listened)
    assert heard == [True, False, False]
    step(chain, torch.randn(5, 8, requires_grad=True))
    assert chain.listened, "inputs of another size may save larger tensors"


def test_a_first_step_with_a_tiny_batch_costs_the_next_one_nothing(chain, chained):
    step(chain, torch.randn(4, 8, requires_grad=True))
    step(chain, torch.randn(4000, 8, requires_grad=True))
    assert chained.report().saved_ratio > 3


def test_a_quiet_module_that_saves_something_large_keeps_it_and_is_heard_the_next_time(chain, chained):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact = torch.autograd.grad(Chain()(x, 1000).sum(), x)[0]
    for _ in range(2):
        step(chain, x)
    for is_coded in (False, True):
        x.grad = None
        step(chain, x, 1000)
        assert chain.listened is is_coded
        assert (chained.report().saved_ratio > 1.5) is is_coded
        assert torch.equal(x.grad, exact) is not is_coded


def test_a_module_that_saved_nothing_is_listened_to_when_it_does(chain, chained):
    x = torch.randn(4000, 8)
    for _ in range(2):  # frozen: nothing needs a gradient
        chain(x)
    step(chain, x.clone().requires_grad_())
    assert chain.listened
    assert chained.report().saved_ratio > 3


def test_a_forward_that_raised_says_nothing_about_the_next(chain, chained):
    chain.error = ValueError("no")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            chain(torch.randn(4, 8, requires_grad=True))
        assert chain.listened


@pytest.mark.parametrize("is_read", [True, False], ids=["saved", "not saved"])
def test_a_temporary_input_lives_no_longer_than_in_plain_torch(is_read):
    model = nn.Sequential(nn.Linear(64, 64).requires_grad_(is_read), nn.Linear(64, 64))
    with slimgrad.attach(model, bound=slimgrad.Relative(0.25)):
        x = torch.randn(64, 64)
        storage = weakref.ref(x.untyped_storage())
        inputs = [x]
        del x
        y = model(inputs.pop())
        assert (storage() is not None) is is_read, "by the graph, and by nothing else"
        y.sum().backward()
        assert storage() is None
