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
