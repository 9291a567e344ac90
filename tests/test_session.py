"""attach() and Session: the public surface, on one small network."""

from __future__ import annotations

import copy
import json
import re

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooking

import slimgrad
from slimgrad.errors import ConfigError


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16 * 16, 10),
    )  # fmt: skip


X, Y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
SGD = torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def gradients(model, criterion):
    model.zero_grad()
    criterion(model(X), Y).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def error_of(found, expected):
    return sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True)) / sum(
        float(b.square().sum()) for b in expected
    )


def test_exact_gives_the_same_gradients_and_still_saves():
    model, criterion = small_net(), nn.CrossEntropyLoss()
    plain = gradients(model, criterion)
    with slimgrad.attach(model, criterion, bound=slimgrad.Exact()) as session:
        exact = gradients(model, criterion)
        assert session.report().saved_ratio > 1.2
    assert all(torch.equal(a, b) for a, b in zip(exact, plain, strict=True))


def test_a_coarser_bound_saves_more_and_errs_more():
    model, criterion = small_net(), nn.CrossEntropyLoss()
    plain = gradients(model, criterion)
    ratios, errors = [], []
    for rel in (0.02, 0.25):
        with slimgrad.attach(model, criterion, bound=slimgrad.Relative(rel)) as session:
            errors.append(error_of(gradients(model, criterion), plain))
            ratios.append(session.report().saved_ratio)
    assert 1 < ratios[0] < ratios[1]
    assert 0 < errors[0] < errors[1] < 0.1


def test_rules_make_modules_exact():
    model, criterion = small_net(), nn.CrossEntropyLoss()
    plain = gradients(model, criterion)
    with slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.5), rules={"*": slimgrad.Exact()}):
        assert error_of(gradients(model, criterion), plain) == 0.0


def test_a_graph_outlives_its_session():
    model, criterion = small_net(), nn.CrossEntropyLoss()
    plain = gradients(model, criterion)
    session = slimgrad.attach(model, criterion, bound=slimgrad.Exact())
    model.zero_grad()
    loss = criterion(model(X), Y)
    session.detach()
    loss.backward()
    assert all(torch.equal(p.grad, b) for p, b in zip(model.parameters(), plain, strict=True))


def test_recording_covers_code_outside_of_modules():
    model = small_net()
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5), min_bytes=64) as session:
        logits = model(X)
        with session.recording():
            loss = nn.functional.cross_entropy(logits, Y)
        loss.backward()
        roles = {row["role"] for row in json.loads(session.report().to_json())["roles"]}
    assert "log-softmax result" in roles


def test_the_state_resumes():
    model, criterion = small_net(), nn.CrossEntropyLoss()
    with slimgrad.attach(model, criterion) as session:
        for _ in range(3):
            gradients(model, criterion)
        session.report()
        state = copy.deepcopy(session.state_dict())
    with slimgrad.attach(model, criterion) as session:
        session.load_state_dict(state)
        assert session.state_dict() == state
        assert state["n_steps"] == 3


def test_the_default_bound_is_a_budget_of_noise():
    with slimgrad.attach(small_net()) as session:
        assert session.attached.bound == slimgrad.Noise(0.05)


def test_nothing_recorded_is_explained():
    model = small_net()
    with slimgrad.attach(model) as session:
        with torch.no_grad():
            model(X)
        assert "no_grad" in str(session.report())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_bytes": -1}, "min_bytes"),
        ({"policy": "fast"}, "Compress"),
        ({"policy": slimgrad.Recompute(blocks=["nowhere"])}, "nowhere"),
        ({"bound": 0.05}, "bound"),
        ({"bound": slimgrad.Exact}, r"bound=slimgrad.Exact\("),
        ({"rules": {"0": slimgrad.Exact}}, r"'0': slimgrad.Exact\("),
        ({"rules": [slimgrad.Exact()]}, "rules={'layer1"),
        ({"rules": {0: slimgrad.Exact()}}, "rules={'layer1"),
        ({"optimizer": "sgd"}, "optimizer=torch.optim"),
        ({"optimizer": [SGD]}, "list.*optimizer=torch.optim"),
        ({"optimizer": torch.optim.lr_scheduler.StepLR(SGD, 1)}, "optimizer=scheduler.optimizer"),
        ({"bound": slimgrad.Comet()}, "optimizer"),
    ],
    ids=lambda value: re.sub(" object at 0x[0-9a-f]+", "", str(value)),  # an address is another in each process
)
def test_wrong_arguments_are_refused_and_the_model_stays_free(arguments, message):
    """What to type instead is part of the message."""
    model = small_net()
    with pytest.raises(ConfigError, match=message):
        slimgrad.attach(model, **arguments)
    slimgrad.attach(model).detach()


@pytest.mark.parametrize(
    ("other", "message"),
    [(slimgrad.Noise(0.05), "bound=Noise"), (slimgrad.Compress(), "policy=Compress"), (SGD, "optimizer=")],
    ids=lambda value: type(value).__name__,
)
def test_what_has_to_be_passed_by_name_is_told_from_a_module(other, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        slimgrad.attach(small_net(), other)


@pytest.mark.parametrize("state", [None, [1], "state"], ids=repr)
def test_what_is_no_state_is_refused(state):
    model = small_net()
    with slimgrad.attach(model) as session, pytest.raises(ConfigError, match=r"session.load_state_dict"):
        session.load_state_dict(state)


@pytest.mark.parametrize("where", ["meter", "shelf", "recorder"])
def test_a_session_ends_whatever_goes_wrong_while_it_does(monkeypatch, where):
    """Hooks that stay would record for ever, and nobody could attach the model again."""

    def fail(*_):
        raise ZeroDivisionError

    n_hooks = len(hooking._global_forward_hooks)
    model = small_net()
    session = slimgrad.attach(model)
    part, name = {
        "meter": (session.tuning.meter, "close"),
        "shelf": (session.shelf, "close"),
        "recorder": (session._recorder, "remove"),
    }[where]
    monkeypatch.setattr(part, name, fail)
    with pytest.raises(ZeroDivisionError):
        session.detach()
    monkeypatch.undo()  # it ends once more when the model dies: graphs may have been run since
    assert len(hooking._global_forward_hooks) == n_hooks
    slimgrad.attach(model).detach()


def test_kept_bytes_counts_what_is_kept_as_it_is():
    class Unknown(nn.Module):
        def forward(self, x):
            y = torch.exp(x)  # no role: needed bit for bit
            return y.view(-1) * torch.exp(y).view(-1)

    model, x = Unknown(), torch.randn(64, 64, requires_grad=True)
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)) as session:
        result = model(x * 1).sum()
        assert session.kept_bytes() == 2 * x.nbytes  # both results of exp, the first of which three functions save
        result.backward()
        assert session.kept_bytes() == 0
