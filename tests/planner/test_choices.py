"""Choices that fit at the least time, on timelines small enough to check by hand."""

from __future__ import annotations

from slimgrad.planner.choices import CODE, DISK, KEEP, Cost, Timeline, choose
from slimgrad.planner.fake_run import Moment
from slimgrad.planner.fake_shelf import Item


def item(path: str, born: int, died: int) -> Item:
    return Item(path, 1, "conv input", 100, 10, "nested", born, died)


# Two tensors overlap at operators 1 and 2. The fake run held them coded, 10 bytes each; 5 bytes of buffer at 2.
ITEMS = [item("a", 0, 4), item("b", 1, 3)]
MOMENTS = [Moment(1000, 10), Moment(1000, 20), Moment(1020, 25), Moment(1000, 10), Moment(1000, 0)]
A, B = ("a", 1), ("b", 1)
COSTS = {A: Cost((100, 10, 0), (0.0, 2.0, 9.0)), B: Cost((100, 10, 0), (0.0, 1.0, 9.0))}


def test_the_peak_of_any_choice():
    timeline = Timeline(ITEMS, MOMENTS, 1000)
    assert timeline.sites == [A, B]
    assert timeline.peak({A: CODE, B: CODE}, COSTS) == 1020 + 25
    assert timeline.peak({A: KEEP, B: KEEP}, COSTS) == 1020 + 200 + 5
    assert timeline.peak({A: KEEP, B: CODE}, COSTS) == 1020 + 100 + 10 + 5
    assert timeline.peak({A: DISK, B: DISK}, COSTS) == 1020 + 5


def test_the_pool_does_not_shrink_within_a_step():
    late = [Moment(1000, 10), Moment(1000, 0), Moment(2000, 0)]
    assert Timeline([item("a", 0, 1)], late, 1000).peak({A: CODE}, COSTS) == 2010
    assert Timeline([item("a", 0, 1)], late, 1000).peak({A: KEEP}, COSTS) == 2000


def test_the_cheapest_change_comes_first():
    timeline = Timeline(ITEMS, MOMENTS, 1000)
    assert choose(timeline, COSTS, 1300) == {A: KEEP, B: KEEP}
    assert choose(timeline, COSTS, 1150) == {A: KEEP, B: CODE}  # b costs half as much as a
    assert choose(timeline, COSTS, 1050) == {A: CODE, B: CODE}
    assert choose(timeline, COSTS, 1030) == {A: DISK, B: DISK}
    assert choose(timeline, COSTS, 1030, (KEEP, CODE)) == {A: CODE, B: CODE}  # the most frugal there is


def test_what_is_not_alive_at_the_peak_stays():
    moments = [Moment(1000, 10), Moment(1000, 0), Moment(1000, 10)]
    items = [item("a", 0, 1), item("b", 2, 3)]
    costs = {A: Cost((500, 10, 0), (0.0, 1.0, 9.0)), B: COSTS[B]}
    assert choose(Timeline(items, moments, 1000), costs, 1150) == {A: CODE, B: KEEP}
