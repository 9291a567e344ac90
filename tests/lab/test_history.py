"""The course of a run in about a hundred points."""

import pytest

from slimgrad.lab.history import History
from slimgrad.ledger import Coded, Sums


def sums(saved_in: int, saved_out: int) -> Sums:
    return Sums(coded={("a", "conv input"): Coded(n=1, nbytes_in=saved_in, nbytes_out=saved_out)})


def test_a_long_run_has_a_hundred_points_and_a_short_one_all() -> None:
    assert sum(History(5000).is_point_due(step - 1, step) for step in range(1, 5001)) == 100
    assert sum(History(7).is_point_due(step - 1, step) for step in range(1, 8)) == 7


def test_a_point_is_the_mean_of_its_steps_and_what_the_ledger_counted_since_the_last() -> None:
    history = History(200)
    for loss in (1.0, 3.0):
        history.add_step(loss, 0.5, 0.1)
    assert (history.loss, history.accuracy) == (2.0, 0.5)
    history.add_point(2, sums(100, 10))
    history.add_step(5.0, 1.0, 0.3)
    history.add_point(3, sums(160, 30))
    assert [point["loss"] for point in history.train] == [2.0, 5.0]
    assert history.seconds == pytest.approx([0.1, 0.3])
    assert [(point["saved_in"], point["saved_out"]) for point in history.train] == [(100, 10), (60, 20)]
    assert history.saved_ratio == pytest.approx(160 / 30)
    assert history.loss == 5.0


def test_a_resumed_history_goes_on_with_a_new_ledger() -> None:
    history, other = History(200), History(200)
    history.add_step(1.0, 0.5, 0.1)
    history.add_point(1, sums(100, 10))
    history.add_step(3.0, 0.5, 0.1)
    other.load_state_dict(history.state_dict())
    other.add_step(5.0, 0.5, 0.1)
    other.add_point(3, sums(100, 40))
    assert other.train[-1]["loss"] == 4.0
    assert other.saved_ratio == pytest.approx(4.0)


def test_a_test_that_is_repeated_counts_once() -> None:
    history = History(10)
    history.add_test(5, 1.0, 0.5)
    history.add_test(5, 1.0, 0.5)
    assert history.was_tested(5) and not history.was_tested(6)
    assert len(history.to_dict()["test"]) == 1
