"""Parts of the page of a profile; the whole is tested in test_profile.py."""

from page_reader import PageReader

from slimgrad.lab import profile_page
from slimgrad.lab.density import CODES, Layer, Observation


def layer(density: float, **ratios: float) -> Layer:
    return Layer("conv", False, (4, 8, 8), density, 1.5, {"NCHW": {**dict.fromkeys(CODES, 2.0), **ratios}}, [])


def test_claims_are_reported_as_they_come_out() -> None:
    found = [Observation("a", True, "x"), Observation("b", False, "y"), Observation("c", None, "z")]
    rows = PageReader(profile_page.observed(found)).tables["observations"]
    assert rows[1:] == [["a", "holds", "x"], ["b", "does not hold", "y"], ["c", "cannot tell", "z"]]


def test_a_layout_that_a_layer_does_not_have_is_empty() -> None:
    row = PageReader(profile_page.ratios([layer(0.5, nested=3.0)])).tables["ratios"][1]
    assert row == ["conv", "4 x 8 x 8", "50%", "1.50 bit", "3.00x", "-", "2.00x", "-", "2.00x", "-", "2.00x", "-"]


def test_the_mean_ratio_is_that_of_the_bytes() -> None:
    """Of layers of one size, 2x and 6x together make 3x."""
    text = profile_page.lines({0.0: [layer(0.5, zvc=2.0), layer(0.5, zvc=6.0)], 1.0: [layer(0.5), layer(0.5)]})
    assert "zvc, 0: 3" in PageReader(text).text


def test_layers_without_a_map_have_no_picture() -> None:
    assert profile_page.patterns({0.0: [layer(0.5)], 1.0: [layer(0.5)]}) == []
