"""Memory over one step, drawn."""

import pytest
from page_reader import PageReader

from slimgrad.report.memory_chart import CAPTION, NARROW, TOP, WIDE, Curve, draw, places

MIB = 1 << 20
PLAIN = Curve("plain", [0, 40 * MIB, 80 * MIB, 20 * MIB, 0], 0.5)
SLIM = Curve("noise:0.05", [0, 10 * MIB, 5 * MIB], 0.25, 1)


def test_forward_is_the_left_half_and_backward_the_right_one() -> None:
    assert places(PLAIN) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    assert places(SLIM) == pytest.approx([0.0, 0.5 + 0.5 * 0.25 / 0.75, 1.0])
    assert places(Curve("one", [5], 1.0)) == pytest.approx([0.0])


def test_every_peak_is_said_and_lies_where_its_sample_does() -> None:
    text = draw([PLAIN, SLIM])
    read = PageReader(text)
    assert read.captions == [CAPTION]
    assert "plain: 80.0 MiB" in read.text and "noise:0.05: 10.0 MiB" in read.text
    assert "forward" in read.text and "backward" in read.text and "80 MiB" in read.text
    assert len(read.polylines) == 4, "two curves, wide and for a phone"
    for line, form in ((read.polylines[0], WIDE), (read.polylines[2], NARROW)):
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        assert min(y for _, y in points) == TOP, f"the largest curve reaches the top of {form}"


def test_labels_of_equal_peaks_are_apart() -> None:
    text = draw([PLAIN, PLAIN._replace(name="exact", colour=2)])
    heights = [float(part.split('y="')[1].split('"')[0]) for part in text.split('class="peak"')[1:3]]
    assert abs(heights[0] - heights[1]) > 10


def test_nothing_to_draw_leaves_no_figure() -> None:
    assert draw([]) == draw([Curve("plain", [], 0.5)]) == ""
