"""The shell of every page."""

from pathlib import Path

from page_reader import PageReader

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
