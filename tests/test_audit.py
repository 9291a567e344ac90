"""Audits: exact against compressed gradient, and nothing of it left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.errors import ConfigError

X, Y = torch.randn(16, 3, 24, 24), torch.randint(10, (16,))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 22 * 22, 10)
    )


def loss_of(model):
    return nn.functional.cross_entropy(model(X), Y)


def test_exact_has_no_noise(model):
    with slimgrad.attach(model, bound=slimgrad.Exact()) as session:
        audit = session.audit(lambda: loss_of(model))
    assert audit.noise == 0.0
    assert audit.saved_ratio > 1


def test_noise_is_that_of_the_gradients(model):
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        model.eval()  # no dropout: the two runs below see the same as the audit
        audit = session.audit(lambda: loss_of(model))
        with session.paused():
            exact = torch.autograd.grad(loss_of(model), list(model.parameters()))
        rough = torch.autograd.grad(loss_of(model), list(model.parameters()))
    error2 = sum(float((a - b).double().square().sum()) for a, b in zip(rough, exact, strict=True))
    assert audit.noise > 0
    assert audit.noise == pytest.approx(error2 / sum(float(b.double().square().sum()) for b in exact), rel=1e-3)


def test_nothing_is_left_behind(model):
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        loss_of(model).backward()
        grads = [parameter.grad.clone() for parameter in model.parameters()]
        buffers = [buffer.clone() for buffer in model.buffers()]
        state = torch.get_rng_state()
        session.audit(lambda: loss_of(model))
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))


def test_it_prints_a_table_and_shows_in_the_report(model):
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        audit = session.audit(lambda: loss_of(model))
    assert "gradient noise" in str(audit)
    assert audit.to_dict()["noise"] == audit.noise


@pytest.mark.parametrize("fn", [lambda: 3.0, lambda: torch.zeros(3, requires_grad=True)], ids=["number", "vector"])
def test_what_is_no_loss_is_refused(model, fn):
    with slimgrad.attach(model) as session, pytest.raises(ConfigError, match="return the loss"):
        session.audit(fn)
