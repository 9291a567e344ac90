"""Tuning: bounds and their states from step to step."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.attached import Attached
from slimgrad.bounds.noise import Noise
from slimgrad.errors import ConfigError
from slimgrad.tuning import Tuning


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.LazyLinear(10))


def trained(model, session, n_steps):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(n_steps):
        x = torch.randn(8, 3, 24, 24, generator=generator)
        loss = nn.functional.cross_entropy(model(x), torch.randint(10, (8,), generator=generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    session.report()
    return session.state_dict()


def test_fixed_bounds_have_no_state_and_cost_nothing(model):
    tuning = Tuning(Attached((model,), slimgrad.Relative(0.5), {}))
    assert tuning.states == {}
    assert not tuning.meter.is_on
    assert tuning.bound_at("0", ("0", 1)) == slimgrad.Relative(0.5)


def test_an_adaptive_bound_learns_in_a_run_and_its_state_is_plain_data(model):
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        state = trained(model, session, 3)
    assert json.loads(json.dumps(state, default=str))
    assert "sites" in str(state)


def test_a_state_resumes_to_the_same_bounds(model):
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        state = trained(model, session, 3)
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        session.load_state_dict(state)
        assert session.tuning.state_dict() == state["tuning"] if "tuning" in state else session.state_dict() == state


def test_the_state_of_another_model_is_refused(model):
    other = nn.Linear(4, 4)
    with slimgrad.attach(other, bound=Noise(0.05)) as session:
        state = session.state_dict()
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05)) as session, pytest.raises(ConfigError, match="another"):
        session.load_state_dict(state)
