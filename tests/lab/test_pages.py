"""The page of a comparison, read back by a program."""

from pathlib import Path

import pytest
from made_results import result
from page_reader import PageReader

from slimgrad.lab import compare_table, pages
from slimgrad.lab.compare import rows_of


@pytest.fixture
def results() -> list:
    return [result(arm, seed, 0.5) for seed in range(2) for arm in ("plain", "noise:0.05")]


def test_the_figures_can_be_read_off_the_page(results: list, tmp_path: Path) -> None:
    pages.write(tmp_path / "page.html", results)
    read = PageReader((tmp_path / "page.html").read_text(encoding="utf-8"))
    rows = rows_of(results)
    assert read.tables["costs"][1:] == [list(compare_table.cost_cells(row)) for row in rows] + [
        list(compare_table.published())
    ]
    assert read.tables["learnt"][2] == list(compare_table.learnt_cells(rows[1]))
    assert read.figures["rows"][1]["saved_ratio"] == pytest.approx(13.3)
    assert "4.0 MiB → 256.0 KiB" in read.text
    assert read.links == []
    for caption in ("live tensors", "training loss", "test accuracy", "ratio over all", "gradient noise", "mean bound"):
        assert any(caption in one for one in read.captions), caption


def test_a_single_plain_run_has_no_compression_to_show(tmp_path: Path) -> None:
    pages.write(tmp_path / "page.html", [result("plain")])
    read = PageReader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "Compression over training" not in read.text
    assert "training loss" in read.captions


def test_seeds_are_thin_lines_around_their_mean(results: list) -> None:
    curves = pages._curves(pages.by_arm(results), {"plain": 0, "noise:0.05": 1}, "train", "loss")
    assert [(one.name, one.is_thin) for one in curves[:3]] == [("plain", True), ("plain", True), ("plain", False)]
    assert curves[2].points == [(1, 2.0), (2, 1.0)]


def test_the_page_begins_with_the_peak_and_the_figures_beside_plain(results: list, tmp_path: Path) -> None:
    rows = rows_of(results)
    assert [one.figure for one in pages.tiles(rows)] == ["8.0 → 2.0 MiB", "13.3x smaller", "50.00 % ± 0.00", "0.120 s"]
    assert [one.remark for one in pages.tiles(rows)] == [
        "4.0x smaller", "noise:0.05", "+0.00 pt [+0.00, +0.00] to plain", "1.20x plain"
    ]  # fmt: skip
    assert [one.figure for one in pages.tiles(rows[:1])] == ["8.0 MiB", "50.00 % ± 0.00", "0.100 s"]
    assert pages._from_to("1.5 GiB", "8.0 MiB") == "1.5 GiB → 8.0 MiB"
    pages.write(tmp_path / "page.html", results)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index("class=tiles") < text.index("Memory over one step") < text.index("The table")


def test_only_plain_is_grey_however_many_arms_there_are() -> None:
    arms = ["plain", *(f"relative:{n}" for n in range(1, 9))]
    assert list(pages.colours_of(arms).values()) == [0, 1, 2, 3, 4, 5, 1, 2, 3]


def test_a_model_without_options_leaves_no_trace_of_them(tmp_path: Path) -> None:
    one = result("plain")
    one["recipe"]["options"] = {}
    pages.write(tmp_path / "page.html", [one])
    assert "; ." not in (tmp_path / "page.html").read_text(encoding="utf-8")
