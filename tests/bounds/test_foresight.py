"""How what is measured compares with what was expected of it."""

from __future__ import annotations

import pytest

from slimgrad.bounds import foresight, sensitivity
from slimgrad.bounds.base import ErrorReading, Reading, SiteReading, site_key
from slimgrad.bounds.foresight import (
    LEARN_CALIBRATION,
    LEARN_PART,
    LEARN_RATIO,
    LEAST_RATIO,
    MOST_OF_ALL,
    MOST_RATIO,
    POOLED,
    START_RATIO,
    WHOLE,
    YOUNG,
)
from slimgrad.bounds.sensitivity import START, loads

RECENT = 250
NORM = ("norm", 1)
LAYERS = {"norm": 0.1, "conv": 0.4, "first": 0.5}


def reading_of(*errors, step=YOUNG, energy=1.0, layers=LAYERS):
    return Reading(step, energy, (), errors=errors, layers=layers)


def own(noise):
    return ErrorReading((NORM,), noise, {"norm": noise})


def known_after(*errors, step=YOUNG):
    """Return the state and the sites after some errors of one site were measured in one step."""
    sites = {
        site_key(NORM): sensitivity.seen(None, SiteReading(NORM, "conv input", 0, 1000, 300, START, 0.1, 1.0, 1.0), 1.0)
    }
    reading = reading_of(*errors, step=step)
    for error in errors:
        sensitivity.measure(sites, error, reading, sensitivity.energies_of(reading, {}))
    return {**foresight.start(), "loads": loads(sites)}, sites


def test_a_part_is_a_slow_mean_whatever_the_energy_of_a_batch():
    once = foresight.parts({}, reading_of())
    assert once == LAYERS
    again = foresight.parts(once, reading_of(energy=10.0, layers={"norm": 0.0, "conv": 4.0, "first": 6.0}))
    assert again == pytest.approx({"norm": 0.1 * (1 - LEARN_PART), "conv": 0.4, "first": 0.5 + 0.1 * LEARN_PART})
    assert foresight.parts(again, reading_of(layers={})) == again


def test_before_anything_was_expected_nothing_is_learnt():
    state, sites = known_after()
    assert foresight.learn(state, sites, reading_of(own(0.1)), RECENT) == state


def test_what_is_found_beside_what_was_expected_moves_calibration_and_layers():
    state, sites = known_after(own(0.001))
    after = foresight.learn(state, sites, reading_of(own(0.002)), RECENT)
    assert after["calibration"] == pytest.approx(START_RATIO + LEARN_CALIBRATION * (2.0 - START_RATIO), rel=0.01)
    assert after["ratios"]["norm"] == pytest.approx(START_RATIO + LEARN_RATIO * (2.0 - START_RATIO), rel=0.01)
    assert state["calibration"] == START_RATIO  # the old one is left as it was


def test_what_is_always_off_by_the_same_factor_is_corrected_by_its_root_and_what_audits_find_in_full():
    found, audited = foresight.start(), foresight.start()
    for _ in range(40):
        for layer in ("norm", WHOLE):
            found = foresight.put_to_test(found, layer, 2.25)
            audited = foresight.put_to_test(audited, layer, 1.5, is_halfway=True)
    for state in (found, audited):
        assert foresight.correction(state) == pytest.approx(1.5)
        assert foresight.corrections(state, ["norm"])["norm"] == pytest.approx(1.5, rel=0.01)


def test_scatter_corrects_as_the_mean_of_what_scatters():
    state = foresight.start()
    for _ in range(60):
        for ratio in (0.5, 2.0):
            state = foresight.put_to_test(state, "norm", ratio)
    assert foresight.corrections(state, ["norm"])["norm"] ** 2 == pytest.approx(1.25, rel=0.2)


@pytest.mark.parametrize(
    ("layer", "ratio", "limit"),
    [("norm", 1e6, MOST_RATIO), (WHOLE, 1e6, MOST_OF_ALL), ("norm", 1e-6, LEAST_RATIO), (WHOLE, 1e-6, LEAST_RATIO)],
)
def test_one_surprise_counts_as_no_more_than_its_limit(layer, ratio, limit):
    huge, large = (foresight.put_to_test(foresight.start(), layer, one) for one in (ratio, limit))
    assert huge == large != foresight.start()


def test_a_measurement_of_little_of_what_a_layer_gets_says_little():
    state, sites = known_after(own(0.001))
    tenth = {**state, "loads": {layer: 10 * load for layer, load in state["loads"].items()}}
    all_of_it, little = (
        foresight.learn(one, sites, reading_of(own(0.002)), RECENT)["ratios"]["norm"] - START_RATIO
        for one in (state, tenth)
    )
    assert 0.0 < little < 0.3 * all_of_it


def test_what_was_measured_long_ago_says_nothing():
    state, sites = known_after(own(0.001), step=1000)
    soon, late = (
        foresight.learn(state, sites, reading_of(own(0.01), step=1000 + after), RECENT)
        for after in (RECENT, RECENT + 1)
    )
    assert soon["ratios"]
    assert late == state


def test_what_a_young_network_did_says_nothing_of_it_later():
    for step in (YOUNG - 1, YOUNG):
        state, sites = known_after(own(0.001), step=step)
        later = foresight.learn(state, sites, reading_of(own(0.01), step=YOUNG + 5), RECENT)
        assert (later != state) is (step == YOUNG)


def test_what_is_near_counts_for_its_layer_and_once_for_the_whole():
    near = ErrorReading((NORM,), 0.001, {"conv": 0.001}, "near")
    far = ErrorReading((NORM,), 0.001, {"conv": 0.001}, "far")
    state, sites = known_after(own(0.001), near, far)
    grown = ErrorReading((NORM,), 0.003, {"conv": 0.003}, "near")
    after = foresight.learn(state, sites, reading_of(grown), RECENT)
    assert after["ratios"]["conv"] > START_RATIO
    assert after["calibration"] == START_RATIO


def test_what_is_measured_at_once_is_compared_with_all_that_was_expected():
    far = ErrorReading((NORM,), 0.003, {"conv": 0.003}, "far")
    state, sites = known_after(own(0.001), far)
    as_expected = ErrorReading((NORM,), 0.004, {"norm": 0.001, "conv": 0.003}, "all")
    grown = ErrorReading((NORM,), 0.008, {"norm": 0.001, "conv": 0.007}, "all")
    same = foresight.learn(state, sites, reading_of(as_expected), RECENT)
    assert same["calibration"] == pytest.approx(START_RATIO + LEARN_CALIBRATION * (1.0 - START_RATIO), rel=0.01)
    after = foresight.learn(state, sites, reading_of(grown), RECENT)
    assert after["calibration"] == pytest.approx(START_RATIO + LEARN_CALIBRATION * (2.0 - START_RATIO), rel=0.01)
    assert after["ratios"]["norm"] < START_RATIO < after["ratios"]["conv"]


def test_the_correction_of_a_layer_leans_on_that_of_all():
    state = {**foresight.start(), "ratios": {"calm": 1.0, "wild": 3.0}}
    expected = {"calm": 1.0 + POOLED, "wild": 3.0 - POOLED, "new": START_RATIO + POOLED * (2.0 - START_RATIO)}
    found = foresight.corrections(state, ["calm", "wild", "new"])
    assert {layer: correction**2 for layer, correction in found.items()} == pytest.approx(expected)
    assert foresight.corrections(foresight.start(), ["new"]) == {"new": START_RATIO**0.5}
