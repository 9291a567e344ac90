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


class Averages(nn.Module):
    """Has a buffer that every forward puts another in place of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        h = self.layer(x)
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return (h - self.mean).square().mean()


def test_a_buffer_that_was_replaced_is_the_one_from_before():
    model, x = Averages(), torch.randn(64, 64)
    with slimgrad.attach(model, bound=slimgrad.Exact()) as session:
        model(x).backward()
        mean = model.mean
        audit = session.audit(lambda: model(x))
        assert model.mean is mean
        assert audit.noise == 0.0


def test_a_backward_of_its_own_is_refused_and_undone(model):
    def fn():
        loss = loss_of(model)
        loss.backward()
        return loss

    with slimgrad.attach(model) as session:
        loss_of(model).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        before = [grad.clone() for grad in grads]
        with pytest.raises(ConfigError, match=r"write session\.audit\(lambda"):
            session.audit(fn)
        assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, before, strict=True))


def test_an_audit_is_not_in_the_report(model):
    with slimgrad.attach(model) as session:
        loss_of(model).backward()
        before = session.report().to_dict()
        session.audit(lambda: loss_of(model))
        after = session.report().to_dict()
    assert {**before, "notes": 0, "peak": 0} == {**after, "notes": 0, "peak": 0}


def test_it_prints_a_table_and_shows_in_the_report(model):
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        audit = session.audit(lambda: loss_of(model))
    assert "gradient noise" in str(audit)
    assert audit.to_dict()["noise"] == audit.noise


LOSS = torch.zeros(3, requires_grad=True)


@pytest.mark.parametrize("fn", [lambda: 3.0, lambda: LOSS, LOSS.sum()], ids=["number", "vector", "loss itself"])
def test_what_is_no_loss_is_refused(model, fn):
    with slimgrad.attach(model) as session, pytest.raises(ConfigError, match=r"audit.lambda: criterion"):
        session.audit(fn)


def test_an_audit_after_detach_is_refused(model):
    session = slimgrad.attach(model)
    session.detach()
    with pytest.raises(ConfigError, match="before detach"):
        session.audit(lambda: model(X).sum())
