"""Schedule: the order of the last step, two ahead; a wrong guess is only a guess."""

from __future__ import annotations

from slimgrad.storage import schedule as module
from slimgrad.storage.schedule import Schedule


class Thing:
    pass


def put(schedule: Schedule, n: int) -> list[Thing]:
    things = [Thing() for _ in range(n)]
    assert [schedule.put(thing) for thing in things] == list(range(n))
    return things


def test_at_first_the_last_in_is_the_first_out():
    schedule = Schedule()
    things = put(schedule, 5)
    assert schedule.read(4) == [things[3], things[2]]
    assert schedule.read(3) == [things[2], things[1]]
    assert schedule.read(0) == []


def test_the_order_of_the_last_step_is_learnt():
    schedule = Schedule()
    put(schedule, 4)
    for number in (2, 0, 3, 1):
        schedule.read(number)
    schedule.begin()
    things = put(schedule, 4)
    assert schedule.read(2) == [things[0], things[3]]
    assert schedule.read(0) == [things[3], things[1]]
    assert schedule.read(1) == []


def test_what_was_read_or_has_died_is_passed_over():
    schedule = Schedule(n_ahead=3)
    things = put(schedule, 6)
    schedule.read(4)
    del things[2]  # number 2
    assert schedule.read(5) == [things[2], things[1], things[0]]  # numbers 3, 1, 0


def test_a_step_that_reads_nothing_teaches_nothing():
    schedule = Schedule()
    put(schedule, 3)
    for number in (0, 1, 2):
        schedule.read(number)
    schedule.begin()
    schedule.begin()
    things = put(schedule, 3)
    assert schedule.read(0) == [things[1], things[2]]


def test_a_shorter_step_and_an_unknown_number():
    schedule = Schedule()
    put(schedule, 6)
    for number in (5, 4, 3):
        schedule.read(number)
    schedule.begin()
    things = put(schedule, 2)
    assert schedule.read(5) == []
    assert schedule.read(1) == [things[0]], "not in the order: backwards, as at first"


def test_forwards_without_end_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(module, "MAX_THINGS", 10)
    schedule = Schedule()
    assert max(schedule.put(schedule) for _ in range(100)) < 10


def test_nothing_ahead():
    schedule = Schedule(n_ahead=0)
    things = put(schedule, 3)
    assert schedule.read(2) == [] and things
