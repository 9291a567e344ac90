"""The hooks of one thread: installed around forwards that record, and gone afterwards, whatever happens."""

from __future__ import annotations

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
