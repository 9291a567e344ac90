"""Runs that take turns, and the rows that they give."""

import math

import pytest
from made_results import result

from slimgrad import ConfigError
from slimgrad.lab.compare import by_arm, perplexity_change, planned, rows_of
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.spread import Difference

RECIPE = Recipe("resnet18", "fashion-mnist", bound="noise:0.1")


def test_arms_take_turns_and_another_begins_with_every_seed() -> None:
    recipes = planned(RECIPE, ["plain", "relative:0.5"], range(2), "net-")
    assert list(recipes) == ["net-plain-seed0", "net-relative_0.5-seed0", "net-relative_0.5-seed1", "net-plain-seed1"]
    chosen = recipes["net-relative_0.5-seed1"]
    assert (chosen.arm, chosen.bound, chosen.seed) == ("slim", "relative:0.5", 1)
    assert recipes["net-plain-seed0"].arm == "plain"
    assert planned(RECIPE, ["slim"], [0])["slim-seed0"].bound == "noise:0.1"


@pytest.mark.parametrize("arms", [[], ["plain", "plain"], ["plain", "tight"]])
def test_arms_that_cannot_be_are_refused(arms: list[str]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        planned(RECIPE, arms, [0])


def test_rows_have_ratios_to_plain_and_the_difference_seed_by_seed() -> None:
    results = [result("checkpoint", 0), result("noise:0.05", 0, 0.49), result("plain", 0, 0.5)]
    results += [result("plain", 1, 0.6), result("noise:0.05", 1, 0.61)]
    assert list(by_arm(results)) == ["plain", "noise:0.05", "checkpoint"]
    plain, slim, _ = rows_of(results)
    assert (plain.n, plain.peak_ratio, plain.accuracy_difference) == (2, None, None)
    assert slim.peak_ratio == 4.0
    assert slim.time_ratio == pytest.approx(1.2)
    assert slim.saved_ratio == pytest.approx(13.3)
    assert slim.accuracy_difference is not None
    assert slim.accuracy_difference.mean == pytest.approx(0.0)
    half = 12.706 * 0.01 * 2**0.5 / 2**0.5
    assert slim.accuracy_difference.high == pytest.approx(half)


def test_times_of_two_machines_are_not_compared() -> None:
    other = result("noise:0.05", 0)
    other["machine"]["processor"] = "slide rule"
    _, slim = rows_of([result("plain", 0), other])
    assert (slim.time_ratio, slim.peak_ratio) == (None, 4.0)


def test_without_plain_there_is_no_difference() -> None:
    (row,) = rows_of([result("noise:0.05")])
    assert (row.peak_ratio, row.time_ratio, row.accuracy_difference) == (None, None, None)


def test_a_difference_of_losses_is_a_factor_of_perplexities() -> None:
    found = perplexity_change(Difference(math.log(1.01), 0.0, None, 3))
    assert found.mean == pytest.approx(0.01)
    assert (found.low, found.high) == (0.0, None)
