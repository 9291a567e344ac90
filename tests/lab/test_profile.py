"""A profile of a small net, its numbers and its page."""

import json
from pathlib import Path

import pytest
from page_reader import PageReader

from slimgrad.lab import profile_page
from slimgrad.lab.profile import SHARES, _due, profile, to_json
from slimgrad.lab.recipe import Recipe


@pytest.fixture(scope="module")
def result() -> dict:
    recipe = Recipe("tiny_nets:cnn", "random", size=16, steps=4, batch=4, bound="relative:0.25", threads=1)
    seen: list[int] = []
    found = profile(recipe, lambda run: seen.append(run.done))
    assert seen == [1, 2, 3, 4]
    return found


def test_layers_are_observed_from_the_beginning_to_the_end(result: dict) -> None:
    assert tuple(sorted(result["course"])) == SHARES
    first, last = result["course"][0.0], result["course"][1.0]
    assert [layer.name for layer in first] == [layer.name for layer in last] == ["1.2", "1.5", "2.2", "2.5"]
    assert [layer.density for layer in first] != [layer.density for layer in last]
    assert len(result["observations"]) == 4


def test_a_model_without_activation_modules_has_its_bytes(tmp_path: Path) -> None:
    recipe = Recipe("lstm", "random", options={"width": 64}, steps=1, batch=32, bound="relative:0.25", threads=1)
    found = profile(recipe)
    profile_page.write(tmp_path / "page.html", found)
    read = PageReader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert {row[1] for row in read.tables["observations"][1:]} == {"cannot tell"}
    assert "not recognised and stay bit for bit: function `lstm`" in read.text


def test_a_short_training_is_observed_at_the_shares_that_it_has() -> None:
    assert _due(1) == {0: 0.0, 1: 1.0}
    assert _due(2) == {0: 0.0, 1: 0.5, 2: 1.0}
    assert sorted(_due(40).items()) == [(0, 0.0), (10, 0.25), (20, 0.5), (30, 0.75), (40, 1.0)]


def test_bytes_are_those_of_one_step(result: dict) -> None:
    report = result["report"]
    assert report.snapshot.n_steps == 1
    norms = [coded for role, coded in report.by_role().items() if "norm" in role]
    assert sum(coded.n for coded in norms) == 4
    assert sum(coded.nbytes_in for coded in norms) == 4 * (4 * 8 * 14 * 14 * 4)


def test_the_numbers_are_json_and_the_page_shows_them(result: dict, tmp_path: Path) -> None:
    numbers = json.loads(json.dumps(to_json(result), allow_nan=False))
    profile_page.write(tmp_path / "page.html", result)
    read = PageReader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert read.figures["observations"] == numbers["observations"]
    assert [row[0] for row in read.tables["observations"][1:]] == [o["claim"] for o in numbers["observations"]]
    density = numbers["course"]["1.00"][0]["density"]
    assert read.tables["ratios"][1][2] == f"{density:.0%}"
    assert all(link.startswith("data:image/png;base64,") for link in read.links)
    assert len(read.links) == 5 * 4
