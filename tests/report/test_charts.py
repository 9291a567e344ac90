"""Charts as text."""

import io

import numpy as np
import pytest
from page_reader import PageReader
from PIL import Image

from slimgrad.report import charts
from slimgrad.report.charts import Bar, Series


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.7, [0, 0.2, 0.4, 0.6, 0.8]), (93, 118, [90, 95, 100, 105, 110, 115, 120])],
)
def test_ticks_are_round_and_enclose_the_values(low: float, high: float, expected: list[float]) -> None:
    assert charts.ticks(low, high) == expected


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_ticks_of_a_single_value_still_span_something(value: float) -> None:
    found = charts.ticks(value, value)
    assert found[0] <= value <= found[-1]
    assert found[0] < found[-1]


def test_a_line_goes_from_corner_to_corner() -> None:
    text = charts.lines("a & b", [Series("slim", [(0, 0), (1, 2), (2, 4)])], "step", "loss")
    page = PageReader(text)
    (line,) = page.polylines
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    left, right = charts.LEFT, charts.WIDTH - charts.RIGHT
    bottom, top = charts.HEIGHT - charts.BOTTOM, charts.TOP
    assert points == [(left, bottom), ((left + right) / 2, (bottom + top) / 2), (right, top)]
    assert page.captions == ["a & b"]
    assert "slim, 2: 4" in page.text


def test_lines_without_points_leave_no_chart() -> None:
    assert charts.lines("a", [Series("slim", [])], "step", "loss") == ""
    assert charts.bars("a", [], "plain", "slim") == ""


def test_a_name_is_in_the_legend_once() -> None:
    series = [Series("a<b", [(0, 1), (1, 2)], is_thin=True), Series("a<b", [(0, 1)]), Series("c", [(0, 1)], 1)]
    text = charts.lines("x", series, "", "", rule=(1.5, "limit"))
    legend = PageReader(f"<p>{text.split('<ul')[1].partition('>')[2].partition('</ul>')[0]}</p>")
    assert legend.text == "a<bc"
    assert "limit" in PageReader(text).text


def test_bars_share_one_scale() -> None:
    text = charts.bars("bytes", [Bar("conv", 100, 25, "4x"), Bar("norm", 50, 5, "10x")], "plain", "slim")
    widths = [float(part.split("%")[0]) for part in text.split("width:")[1:]]
    assert widths == [100.0, 25.0, 50.0, 5.0]
    PageReader(text)


def test_a_table_is_read_back_and_a_heat_map_has_its_values() -> None:
    page = PageReader(charts.table("t", ("arm", "peak"), [("plain", "5 <MiB>")], "costs"))
    assert page.tables["costs"] == [["arm", "peak"], ["plain", "5 <MiB>"]]
    text = charts.heat("h", ["conv"], ["0 %", "100 %"], [[0.25, None]])
    assert PageReader(text).tables["table 0"][1] == ["conv", "25%", "-"]
    assert "--v:0.250" in text


def test_a_picture_is_a_png_that_others_read() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    read = Image.open(io.BytesIO(charts.png([row.tobytes() for row in pixels])))
    assert np.array_equal(np.asarray(read), pixels)
    page = PageReader(charts.pictures("p", [("conv", [b"\0\xff"])]))
    assert page.links[0].startswith("data:image/png;base64,")
