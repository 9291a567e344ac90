"""Tuning: bounds and their states from step to step."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.attached import Attached
from slimgrad.bounds.base import Request
from slimgrad.bounds.noise import Noise
from slimgrad.bounds.sensitivity import KEYS
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


def test_a_model_that_is_not_whole_yet_has_a_state(model):
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        state = session.state_dict()
        session.load_state_dict(state)
        model(torch.zeros(1, 3, 24, 24))
        with pytest.raises(ConfigError, match="the state of a session on this model"):
            session.load_state_dict(state)


def test_a_state_resumes_to_the_same_bounds(model):
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        state = trained(model, session, 3)
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        session.load_state_dict(state)
        assert session.tuning.state_dict() == state["tuning"] if "tuning" in state else session.state_dict() == state


def run(start, stop, weights=None, state=None, optimizer_state=None):
    """Train a network from one step to another; return its session's state and what a checkpoint holds beside it."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(3200, 10))
    net = nn.Sequential(*layers)
    net.load_state_dict(weights or net.state_dict())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    optimizer.load_state_dict(optimizer_state or optimizer.state_dict())
    with slimgrad.attach(net, optimizer=optimizer, min_bytes=0) as session:
        if state is not None:
            session.load_state_dict(state)
        for step in range(start, stop):
            generator = torch.Generator().manual_seed(step)
            x, y = torch.randn(8, 3, 24, 24, generator=generator), torch.randint(10, (8,), generator=generator)
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return net.state_dict(), session.state_dict(), optimizer.state_dict()


def test_a_resumed_run_takes_the_bounds_of_the_uninterrupted_one():
    whole = run(0, 24)
    weights, state, optimizer_state = run(0, 9)
    resumed = run(9, 24, weights, json.loads(json.dumps(state)), optimizer_state)
    assert resumed[1]["bounds"] == whole[1]["bounds"]
    assert whole[1]["bounds"] != state["bounds"]
    assert all(torch.equal(resumed[0][name], value) for name, value in whole[0].items())


def test_what_is_no_state_is_refused(model):
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model) as session, pytest.raises(ConfigError, match=r"session\.state_dict\(\).*'n_steps'"):
        session.load_state_dict({"epoch": 3})


def test_the_state_of_another_model_is_refused(model):
    other = nn.Linear(4, 4)
    with slimgrad.attach(other, bound=Noise(0.05)) as session:
        state = session.state_dict()
    model(torch.zeros(1, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05)) as session, pytest.raises(ConfigError, match="another"):
        session.load_state_dict(state)


def two_bounds(model, first, second):
    """Return the state of two bounds, one for the second convolution and one for all else, after a training."""
    model(torch.zeros(1, 3, 24, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with slimgrad.attach(model, bound=first, rules={"2": second}, min_bytes=64, optimizer=optimizer) as session:
        states = []
        for _ in range(30):
            trained(model, session, 1)
            states.append({repr(bound): state for bound, state in session.tuning.states.items()})
    return states


def test_a_bound_is_shown_nothing_in_steps_for_which_it_did_not_ask(model):
    comet = slimgrad.Comet(warmup=1000)
    alone = comet.start()
    assert all(states[repr(comet)] == alone for states in two_bounds(model, comet, Noise(0.05)))


@pytest.mark.parametrize(("rule", "learns"), [(slimgrad.Exact(), True), (slimgrad.Relative(0.5), False)])
def test_audits_teach_nothing_where_others_add_errors(model, rule, learns):
    taught = []
    session = slimgrad.attach(model, bound=slimgrad.Noise(0.05), rules={"0": rule})
    (bound,) = session.tuning.states
    monkey = pytest.MonkeyPatch()
    monkey.setattr(type(bound), "audited", lambda self, state, *_: taught.append(1) or state)
    try:
        session.tuning.audited(0.1, {}, 3)
    finally:
        monkey.undo()
        session.detach()
    assert bool(taught) == learns


def test_errors_of_two_bounds_are_followed_apart():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16),
        nn.Flatten(), nn.LazyLinear(10),
    )  # fmt: skip
    model(torch.zeros(2, 3, 24, 24))
    with slimgrad.attach(model, bound=Noise(0.05), rules={"3": Noise(0.01)}, min_bytes=64) as session:
        trained(model, session, 30)
        states = list(session.tuning.states.values())
    entries = [entry for state in states for entry in state["sites"].values() if entry["travels"]]
    assert len(entries) == 2
    assert all(entry["far"]["n"] for entry in entries)


class Asks(Noise):
    """A bound that asks for what it is told to."""

    request = Request()

    def wants(self, step, state):
        return self.request


def test_what_several_bounds_ask_is_rough_and_a_look_only_if_all_that_ask_say_so(model):
    first, second = Asks(0.05), Asks(0.1)
    tuning = Tuning(Attached((model,), first, {"2": second}))
    rough = Request(looks=frozenset({("0", 0)}), is_look=True, is_rough=True)
    for other, is_both in ((Request(), True), (rough, True), (Request(errors=frozenset({("2", 0)})), False)):
        for asking in ((rough, other), (other, rough)):
            for bound, request in zip((first, second), asking, strict=True):
                object.__setattr__(bound, "request", request)
            tuning.begin_step(1)
            found = tuning.meter._request
            assert (found.is_look, found.is_rough) == (is_both, is_both)
            assert (tuning.meter._streams.signs is not None) is is_both


def test_a_state_whose_sites_lack_something_is_refused_and_nothing_changes(model):
    with slimgrad.attach(model, bound=Noise(0.05)) as session:
        state = trained(model, session, 6)
        (learnt,) = state["bounds"].values()
        assert all(entry.keys() == KEYS for entry in learnt["sites"].values())
        before = json.dumps(session.state_dict(), default=str)
        old = json.loads(json.dumps(state))
        for entry in next(iter(old["bounds"].values()))["sites"].values():
            del entry["apart"]
        with pytest.raises(ConfigError, match=r"without apart; leave it out to begin with fresh bounds"):
            session.load_state_dict({**old, "hints": state["hints"]})
        assert json.dumps(session.state_dict(), default=str) == before
