"""Steps and hints."""

from __future__ import annotations

import json

import pytest
from scenes import Calls, gradients, random, same
from torch import nn
from torch.nn import functional as F

import slimgrad
from slimgrad.roles import Need, Role, role_from_dict

VALUES = Role("conv input", Need.VALUES)
SIGN = Role("relu result", Need.SIGN)


@pytest.fixture
def progress():
    model = nn.Linear(2, 2)
    with slimgrad.attach(model) as session:
        yield session.progress


def test_a_step_ends_at_the_first_forward_after_a_backward(progress):
    progress.begin_forward()
    progress.begin_forward()
    assert progress.n_steps == 0
    progress.was_read = True
    progress.begin_forward()
    progress.begin_forward()
    assert progress.n_steps == 1


def test_only_stronger_needs_are_worth_a_hint(progress):
    progress.learn(("layer", 1), SIGN)
    assert progress.hints == {}
    progress.learn(("layer", 1), VALUES)
    assert progress.hints[("layer", 1)] is VALUES


def test_the_state_comes_back(progress):
    progress.n_steps = 7
    progress.learn(("layer", 1), VALUES)
    state = progress.state_dict()
    progress.n_steps, progress.hints = 0, {}
    progress.load_state_dict(state)
    assert progress.n_steps == 7
    assert progress.hints[("layer", 1)].name == "conv input"
    assert progress.state_dict() == state


def test_a_step_that_was_run_before_loading_is_none_of_the_loaded_run(progress):
    state = progress.state_dict()
    progress.was_read = True
    progress.load_state_dict(state)
    progress.begin_forward()
    assert progress.n_steps == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"bounds": {"Noise(e2=0.05, every=100, cap=4.0)": {"sites": {"a#0": {}}}}},
        {"bounds": {"Noise(e2=0.05, every=100, cap=4.0)": {"sites": {}, "loads": {}, "broken": {}}}},
        {"bounds": []},
        {"scale": None},
        {"hints": [1]},
        {"n_steps": "two"},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused_and_changes_nothing(progress, damage):
    state = progress.state_dict()
    with pytest.raises(slimgrad.ConfigError, match="leave it out"):
        progress.load_state_dict({**state, **damage})
    assert progress.state_dict() == state


def test_hooks_of_others_are_remarked(progress):
    progress.meet(test_the_state_comes_back)
    assert "test_the_state_comes_back" in progress.remarks()[0]


COARSE = slimgrad.Relative(0.5)


def net():
    conv = nn.Conv2d(4, 4, 3, padding=1)
    return Calls(lambda x: conv(F.relu(x * 1)).sum(), conv=conv)


def test_a_backward_inside_a_forward_ends_no_step():
    inner = nn.Conv2d(4, 4, 3)

    def forward(x):
        y = inner(x * 1).square().sum()
        return gradients(y, x)[0].sum() + y

    model = Calls(forward, inner=inner)
    with slimgrad.attach(model, bound=slimgrad.Exact()) as session:
        model(random(2, 4, 16, 16))
        model(random(2, 4, 16, 16))
        assert session.progress.n_steps == 0


def test_hints_spare_the_second_coding_and_are_plain_data():
    """The ReLU asks for a sign, the convolution for values: from the second step on it is coded once."""
    model, x = net(), random(4, 4, 16, 16)
    with slimgrad.attach(model, bound=COARSE) as session:
        model(x).backward()
        state = json.loads(json.dumps(session.state_dict()))
        assert [hint[:2] for hint in state["hints"]] == [["", 1]]
        first = gradients(model(x), x)
    with slimgrad.attach(model, bound=COARSE) as resumed:
        resumed.load_state_dict(state)
        coded = []
        put = resumed.shelf.put
        resumed.shelf.put = lambda *args: coded.append(args[2].need) or put(*args)
        again = gradients(model(x), x)
        assert len(coded) == 1
        assert resumed.progress.n_steps == state["n_steps"]
    assert same(first, again)


def test_a_wrong_hint_changes_nothing_but_size():
    model, x = net(), random(4, 4, 16, 16)
    plain = gradients(model(x), x, model)
    with slimgrad.attach(model, bound=slimgrad.Exact()) as session:
        rows = {"name": "rows", "need": "values", "axis": None, "row": 7, "is_centred": True, "is_sparse": False}
        rows |= {"keeps_sign": False, "scale": 1.0, "absolute": 0.0}
        session.progress.hints = {("", number): role_from_dict(rows) for number in range(1, 9)}
        assert same(gradients(model(x), x, model), plain)
