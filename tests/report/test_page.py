"""The shell of every page."""

import errno
import os
from pathlib import Path

import pytest
from page_reader import PageReader

from slimgrad.errors import ConfigError, StorageFull
from slimgrad.report import page


def test_a_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    sections = [page.section("Memory", "<p>here</p>", "", text="a < b"), page.section("Nothing", "")]
    page.write(path, "x & y", sections, "lead", {"ratio": 2.5, "name": "</script>"})
    text = path.read_text(encoding="utf-8")
    read = PageReader(text)
    assert read.figures == {"ratio": 2.5, "name": "</script>"}
    assert "x & y" in read.text and "a < b" in read.text
    assert "Nothing" not in read.text
    assert read.links == []
    assert "http" not in text and "@import" not in text and "url(" not in text


def test_it_has_both_schemes_and_fits_a_phone() -> None:
    text = page.html("a", [])
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    assert "max-width: 36rem" in text


def test_wide_parts_are_below_each_other() -> None:
    assert "class=stack" in page.wide("a", "<p>b</p>") and "class=grid2" in page.section("a", "<p>b</p>")


def test_a_page_that_finds_no_room_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    page.write(path, "old", [])
    before = path.read_bytes()

    def fill(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fill)
    with pytest.raises(StorageFull, match=r"expected room for .*page\.html, got .*No space left"):
        page.write(path, "new", [])
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_bytes() == before


def test_a_place_where_no_page_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"a place where .*/file can be written"):
        page.write(tmp_path / "file" / "page.html", "new", [])
