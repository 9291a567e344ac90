"""The peak of any choice, on timelines small enough to check by hand."""

from __future__ import annotations

import numpy as np

from slimgrad.planner.fake_run import Moment
from slimgrad.planner.fake_shelf import Item
from slimgrad.planner.timeline import AGAIN, CODE, DISK, KEEP, Cost, Room, Timeline

BYTES = Room(page=1, warm=0)
A, B = ("a", 1), ("b", 1)
NBYTES = {KEEP: 100, AGAIN: 3, CODE: 10, DISK: 0}
COSTS = {A: Cost(NBYTES, {}), B: Cost(NBYTES, {})}


def item(path: str, born: int, died: int, **moments: int) -> Item:
    return Item(path, 1, "conv input", 100, 10, "nested", born, died=died, **{"gone": born, **moments})


# Two tensors overlap at operators 1 and 2. The fake run held them coded, 10 bytes each; 5 bytes of buffer at 2.
ITEMS = [item("a", 0, 4), item("b", 1, 3)]
MOMENTS = [Moment(1000, 10), Moment(1000, 20), Moment(1020, 25), Moment(1000, 10), Moment(1000, 0)]


def test_the_peak_of_any_choice():
    timeline = Timeline(ITEMS, MOMENTS, BYTES)
    assert timeline.sites == [A, B]
    assert timeline.peak({A: CODE, B: CODE}, COSTS) == 1020 + 25
    assert timeline.peak({A: KEEP, B: KEEP}, COSTS) == 1020 + 200 + 5
    assert timeline.peak({A: KEEP, B: CODE}, COSTS) == 1020 + 100 + 10 + 5
    assert timeline.peak({A: AGAIN, B: AGAIN}, COSTS) == 1020 + 6 + 5


def test_the_pool_does_not_shrink_within_a_step():
    late = [Moment(1000, 10), Moment(1000, 0), Moment(2000, 0)]
    assert Timeline([item("a", 0, 1)], late, BYTES).peak({A: CODE}, COSTS) == 2010
    assert Timeline([item("a", 0, 1)], late, BYTES).peak({A: KEEP}, COSTS) == 2000


def test_an_original_that_lives_on_is_not_counted_twice():
    moments = [Moment(1100, 10), Moment(1100, 10), Moment(1000, 10)]
    timeline = Timeline([item("a", 0, 3, gone=2)], moments, BYTES)
    assert timeline.peak({A: KEEP}, COSTS) == 1100
    assert timeline.peak({A: CODE}, COSTS) == 1110


def test_what_is_kept_needs_no_room_to_be_decoded():
    moments = [Moment(1000, 10), Moment(1000, 110), Moment(1000, 10)]
    timeline = Timeline([item("a", 0, 3, read=1, done=2)], moments, BYTES)
    assert timeline.peak({A: CODE}, COSTS) == 1110
    assert timeline.peak({A: KEEP}, COSTS) == 1100


def test_what_is_made_again_is_there_while_it_is_read_and_twice_while_it_is_made():
    moments = [Moment(1000, 10), Moment(1000, 10), Moment(1000, 110), Moment(1000, 10)]
    timeline = Timeline([item("a", 0, 4, read=2, done=3)], moments, BYTES)
    assert timeline.peak({A: AGAIN}, COSTS) == 1000 + 200 + 3
    read_only = Timeline([item("a", 0, 4, read=2, done=3)], [Moment(0, 10), *moments[1:]], BYTES)
    assert read_only.peak({A: AGAIN}, COSTS) == 1000 + 200 + 3


def test_on_the_way_to_disk_and_back_bytes_count():
    items = [item(name, born, 9 - born, read=8 - born, done=9 - born) for born, name in enumerate("abcd")]
    moments = [Moment(1000, 10 * min(k + 1, 4, 9 - k)) for k in range(9)]
    timeline = Timeline(items, moments, BYTES)
    costs = {(name, 1): Cost(NBYTES, {}) for name in "abcd"}
    assert timeline.peak({(name, 1): CODE for name in "abcd"}, costs) == 1000 + 10 + 100 + 30
    on_disk = timeline._after({(name, 1): DISK for name in "abcd"}, costs)[1]
    assert on_disk[:4].tolist() == [10, 20, 20, 20], "with the operator after it"
    assert on_disk[5:].tolist() == [130, 130, 120, 110], "two ahead, and one decoded"


def test_pages_are_whole_and_the_first_ones_stay():
    room = Room(page=16, warm=40)
    assert room.touched(np.array([0.0, 17.0, 5.0])).tolist() == [32, 32, 32]
    assert room.touched(np.array([0.0, 90.0, 5.0])).tolist() == [48, 96, 96]
    assert Room(16, 40, floor=64).touched(np.array([0.0, 17.0])).tolist() == [64, 64]
    assert Room(16, 40, floor=64).decisive(np.array([0.0, 17.0]), 0) is None
    assert room.decisive(np.array([0.0, 17.0]), 0) == 1, "what stays of the step before"
    assert room.decisive(np.array([90.0, 17.0, 95.0]), 1) == 0


def test_what_counts_in_the_peak():
    timeline = Timeline(ITEMS, MOMENTS, BYTES)
    assert timeline.at_peak({A: KEEP, B: CODE}, COSTS) == {A: (1, 1), B: (1, 1)}
    late = [*MOMENTS[:3], Moment(3000, 0), Moment(1000, 0)]
    assert timeline.at_peak({A: KEEP, B: KEEP}, COSTS).keys() == {A, B}
    assert Timeline(ITEMS, late, BYTES).at_peak({A: KEEP, B: KEEP}, COSTS)[B] == (0, 1), "only if it were coded"
