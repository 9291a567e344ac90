"""Steps and hints."""

from __future__ import annotations

import pytest

from slimgrad.ledger import Ledger
from slimgrad.progress import Progress
from slimgrad.roles import Need, Role
from slimgrad.shelf import Shelf

VALUES = Role("conv input", Need.VALUES)
SIGN = Role("relu result", Need.SIGN)


@pytest.fixture
def progress():
    return Progress(Shelf(Ledger()))


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
    again = Progress(Shelf(Ledger()))
    again.load_state_dict(progress.state_dict())
    assert again.n_steps == 7
    assert again.hints[("layer", 1)].name == "conv input"
    assert again.state_dict() == progress.state_dict()


def test_hooks_of_others_are_remarked(progress):
    progress.meet(test_the_state_comes_back)
    assert "test_the_state_comes_back" in progress.remarks()[0]
