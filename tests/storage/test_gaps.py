"""Gaps: the lowest that fits, merged when ranges come back."""

from __future__ import annotations

import random

from slimgrad.storage.gaps import Gaps


def test_the_lowest_gap_that_fits_is_cut():
    gaps = Gaps(100)
    assert [gaps.cut(10), gaps.cut(20), gaps.cut(30)] == [0, 10, 30]
    gaps.mend(10, 30)
    assert gaps.cut(22) == 60, "the gap of 20 is too small"
    assert gaps.cut(20) == 10
    assert gaps.cut(20) == -1
    assert gaps.top == 82


def test_whatever_the_order_of_release_one_gap_is_left():
    rng = random.Random(1)
    for _ in range(50):
        gaps = Gaps(1000)
        sizes = [2 * rng.randrange(1, 30) for _ in range(20)]
        ranges = [(start, start + size) for size in sizes if (start := gaps.cut(size)) >= 0]
        rng.shuffle(ranges)
        for start, end in ranges:
            gaps.mend(start, end)
        assert gaps.gaps == [(0, 1001)]


def test_a_full_stretch_can_be_mended():
    gaps = Gaps(64)
    assert gaps.cut(64) == 0
    assert gaps.cut(2) == -1
    gaps.mend(0, 64)
    assert gaps.cut(64) == 0


def test_a_part_of_a_gap_is_cut_wherever_it_lies():
    gaps = Gaps(100)
    assert gaps.lowest(40) == gaps.lowest(100) == 0
    gaps.cut_at(0, 20)
    gaps.cut_at(60, 80)
    assert gaps.gaps == [(20, 60), (80, 101)]
    assert [gaps.lowest(40), gaps.lowest(42)] == [20, -1]
    gaps.cut_at(30, 40)
    gaps.cut_at(20, 30)
    gaps.cut_at(40, 60)
    gaps.cut_at(80, 80)
    assert gaps.gaps == [(80, 101)]


def test_ranges_around_a_reservation_may_come_back_before_it_is_cut():
    gaps = Gaps(100)
    gaps.cut_at(0, 40)
    start = gaps.lowest(50)
    gaps.mend(10, 40)
    gaps.cut_at(start, start + 20)
    assert gaps.gaps == [(10, 40), (60, 101)]
    gaps.mend(start, start + 20)
    gaps.mend(0, 10)
    assert gaps.gaps == [(0, 101)]
