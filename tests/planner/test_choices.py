"""Choices that fit at the least time, on timelines small enough to check by hand."""

from __future__ import annotations

from slimgrad.planner.choices import choose, frugal
from slimgrad.planner.fake_run import Moment
from slimgrad.planner.fake_shelf import Item
from slimgrad.planner.timeline import AGAIN, CODE, DISK, KEEP, Cost, Room, Timeline

ROOM = Room(page=1, warm=0)


def item(path: str, born: int, died: int, nbytes: int = 100) -> Item:
    return Item(path, 1, "conv input", nbytes, 10, "nested", born, gone=born, died=died)


def cost(nbytes: int, seconds: float, again: float | None = None) -> Cost:
    """A tenth of the bytes when coded, none on disk; the disk takes nine seconds."""
    sizes, times = {KEEP: nbytes, CODE: 10, DISK: 0}, {KEEP: 0.0, CODE: seconds, DISK: 9.0}
    return Cost(sizes, times) if again is None else Cost({**sizes, AGAIN: 3}, {**times, AGAIN: again})


# Two tensors overlap at operators 1 and 2. The fake run held them coded, 10 bytes each; 5 bytes of buffer at 2.
ITEMS = [item("a", 0, 4), item("b", 1, 3)]
MOMENTS = [Moment(1000, 10), Moment(1000, 20), Moment(1020, 25), Moment(1000, 10), Moment(1000, 0)]
A, B = ("a", 1), ("b", 1)
COSTS = {A: cost(100, 2.0), B: cost(100, 1.0)}
TIMELINE = Timeline(ITEMS, MOMENTS, ROOM)


def test_the_cheapest_change_comes_first():
    assert choose(TIMELINE, COSTS, 1300) == {A: KEEP, B: KEEP}
    assert choose(TIMELINE, COSTS, 1150) == {A: KEEP, B: CODE}  # b costs half as much as a
    assert choose(TIMELINE, COSTS, 1050) == {A: CODE, B: CODE}
    assert choose(TIMELINE, COSTS, 1030, (KEEP, CODE)) == {A: CODE, B: CODE}  # the most frugal there is
    assert choose(TIMELINE, COSTS, 0) == {A: DISK, B: DISK}


def test_what_is_not_alive_at_the_peak_stays():
    moments = [Moment(1000, 10), Moment(1000, 0), Moment(1000, 10)]
    items = [item("a", 0, 1, 500), item("b", 2, 3)]
    costs = {A: cost(500, 1.0), B: COSTS[B]}
    assert choose(Timeline(items, moments, ROOM), costs, 1150) == {A: CODE, B: KEEP}


def test_bytes_of_a_pool_that_is_larger_anyway_are_worth_nothing():
    large = Timeline(ITEMS, MOMENTS, Room(page=1, warm=0, floor=50))
    cheap_disk = {site: Cost(COSTS[site].nbytes, {KEEP: 0.0, CODE: 1.0, DISK: 1.01}) for site in (A, B)}
    assert set(choose(large, cheap_disk, 1100).values()) == {CODE}
    assert set(choose(TIMELINE, cheap_disk, 1040).values()) == {DISK}


def test_made_again_where_that_is_faster_than_coding():
    fast, slow = {A: COSTS[A], B: cost(100, 1.0, again=0.5)}, {A: COSTS[A], B: cost(100, 1.0, again=1.5)}
    assert choose(TIMELINE, fast, 1150) == {A: KEEP, B: AGAIN}
    assert choose(TIMELINE, slow, 1150) == {A: KEEP, B: CODE}
    assert choose(TIMELINE, fast, 1150, (KEEP, CODE)) == {A: KEEP, B: CODE}


def test_a_source_is_kept_as_long_as_something_is_made_from_it():
    costs = {A: cost(100, 2.0), B: cost(100, 1.0, again=0.5)}
    assert choose(TIMELINE, costs, 1150, sources={B: A}) == {A: KEEP, B: AGAIN}
    assert choose(TIMELINE, costs, 1050, (KEEP, AGAIN, CODE), {B: A}) == {A: CODE, B: CODE}


def test_the_most_frugal_plan_weighs_a_source_with_what_is_made_from_it():
    allowed = (KEEP, AGAIN, CODE)
    costs = {A: cost(100, 2.0), B: cost(100, 1.0, again=0.5)}
    assert frugal(TIMELINE, costs, allowed) == {A: CODE, B: AGAIN}, "from something that is there anyway"
    assert frugal(TIMELINE, costs, allowed, {B: A}) == {A: CODE, B: CODE}, "10 and 10 bytes instead of 100 and 3"
    dear = {A: Cost({KEEP: 100, CODE: 90}, {KEEP: 0.0, CODE: 1.0}), B: Cost({KEEP: 100, CODE: 90, AGAIN: 3}, {})}
    assert frugal(TIMELINE, dear, allowed, {B: A}) == {A: KEEP, B: AGAIN}
