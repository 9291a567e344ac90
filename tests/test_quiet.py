"""Which modules are quiet: by the size of the model's inputs, and never again once they were loud."""

from __future__ import annotations

import pytest

from slimgrad import quiet as quiets
from slimgrad.quiet import Quiet


def forward(quiet: Quiet, nbytes: int, **calls: bool) -> set[str]:
    """Run a forward in which modules are loud or not; return which were known to be quiet."""
    quiet.begin("", nbytes)
    known = {path for path in calls if path in quiet}
    for path, is_loud in calls.items():
        quiet.note(path, is_loud)
    quiet.end()
    return known


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def test_a_module_is_quiet_from_the_second_forward_on(quiet):
    assert forward(quiet, 100, a=False, b=True) == set()
    assert forward(quiet, 100, a=False, b=True) == {"a"}


def test_inputs_of_another_size_say_nothing(quiet):
    forward(quiet, 100, a=False)
    assert forward(quiet, 101, a=False) == set()
    assert forward(quiet, 100, a=False) == {"a"}


def test_a_module_that_was_loud_once_is_quiet_no_more(quiet):
    forward(quiet, 100, a=False)
    forward(quiet, 200, a=True)
    forward(quiet, 100, a=False)
    assert forward(quiet, 100, a=False) == set()


def test_a_module_called_twice_is_quiet_if_both_calls_are(quiet):
    quiet.begin("", 100)
    for is_loud in (False, True):
        quiet.note("a", is_loud)
    quiet.end()
    assert forward(quiet, 100, a=False) == set()


def test_between_forwards_nothing_is_quiet(quiet):
    forward(quiet, 100, a=False)
    assert "a" not in quiet


def test_sizes_are_forgotten_before_there_are_too_many(quiet):
    for nbytes in range(10 * quiets.MAX_SIZES):
        forward(quiet, nbytes, a=False)
    assert len(quiet._by_size) <= quiets.MAX_SIZES
