"""How what is measured compares with what was expected of it."""

from __future__ import annotations

import math

import pytest

from slimgrad.bounds import foresight, sensitivity
from slimgrad.bounds.base import ErrorReading, Reading, SiteReading, site_key
from slimgrad.bounds.foresight import LEARN_CALIBRATION, LEARN_PART, LEARN_SPREAD, MOST_RATIO, START_SPREAD, WHOLE
from slimgrad.bounds.sensitivity import ALL, START, loads

RECENT = 250
NORM = ("norm", 1)
LAYERS = {"norm": 0.1, "conv": 0.4, "first": 0.5}


def reading_of(*errors, step=1, energy=1.0, layers=LAYERS):
    return Reading(step, energy, (), errors=errors, layers=layers)


def own(noise):
    return ErrorReading((NORM,), noise, {"norm": noise})


def known_after(*errors, step=1):
    """Return the state and the sites after some errors of one site were measured."""
    sites = {
        site_key(NORM): sensitivity.seen(None, SiteReading(NORM, "conv input", 0, 1000, 300, START, 0.1, 1.0, 1.0), 1.0)
    }
    for error in errors:
        sensitivity.measure(sites, error, reading_of(error, step=step), {ALL: 0.0})
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
    assert after["calibration"] == pytest.approx(1.0 + LEARN_CALIBRATION, rel=0.01)
    assert after["biases"]["norm"] == pytest.approx(LEARN_SPREAD * math.log(2.0), rel=0.05)
    assert state["calibration"] == 1.0  # the old one is left as it was


def test_what_is_always_off_by_the_same_factor_is_a_bias_and_no_scatter():
    state = foresight.start()
    for _ in range(40):
        state = foresight.put_to_test(foresight.put_to_test(state, "norm", 2.0), WHOLE, 2.0)
    assert state["calibration"] == pytest.approx(2.0)
    assert foresight.corrections(state, ["norm"])["norm"] == pytest.approx(2.0, rel=0.01)
    assert state["spreads"]["norm"] < 0.01


def test_scatter_corrects_as_the_mean_of_what_scatters():
    state = foresight.start()
    for _ in range(60):
        for ratio in (math.exp(0.5), math.exp(-0.5)):
            state = foresight.put_to_test(state, "norm", ratio)
    assert foresight.corrections(state, ["norm"])["norm"] == pytest.approx(math.cosh(0.5), rel=0.25)
    assert foresight.corrections(state, ["norm"])["norm"] > 1.0


def test_one_surprise_counts_as_no_more_than_tenfold():
    huge, large = (foresight.put_to_test(foresight.start(), "norm", ratio) for ratio in (1e6, MOST_RATIO))
    assert huge == large
    whole = foresight.put_to_test(foresight.start(), WHOLE, 1e6)
    assert whole["calibration"] == pytest.approx(1.0 + LEARN_CALIBRATION * 3.0)


def test_less_than_was_expected_is_little_scatter():
    spreads = [foresight.put_to_test(foresight.start(), "norm", ratio)["spreads"]["norm"] for ratio in (0.1, 10.0)]
    assert spreads[0] <= START_SPREAD < spreads[1]


def test_a_measurement_of_little_of_what_a_layer_gets_says_little():
    state, sites = known_after(own(0.001))
    tenth = {**state, "loads": {layer: 10 * load for layer, load in state["loads"].items()}}
    all_of_it, little = (
        foresight.learn(one, sites, reading_of(own(0.002)), RECENT)["biases"]["norm"] for one in (state, tenth)
    )
    assert 0.0 < little < 0.3 * all_of_it


def test_what_was_measured_long_ago_says_nothing():
    state, sites = known_after(own(0.001), step=1000)
    soon, late = (
        foresight.learn(state, sites, reading_of(own(0.01), step=1000 + after), RECENT)
        for after in (RECENT, RECENT + 1)
    )
    assert soon["biases"]
    assert late == state


def test_a_new_network_is_another_when_it_is_twice_as_old():
    state, sites = known_after(own(0.001), step=10)
    soon, late = (foresight.learn(state, sites, reading_of(own(0.01), step=step), RECENT) for step in (19, 20))
    assert soon["biases"]
    assert late == state


def test_what_is_near_counts_for_its_layer_and_once_for_the_whole():
    near = ErrorReading((NORM,), 0.001, {"conv": 0.001}, "near")
    far = ErrorReading((NORM,), 0.001, {"conv": 0.001}, "far")
    state, sites = known_after(own(0.001), near, far)
    grown = ErrorReading((NORM,), 0.003, {"conv": 0.003}, "near")
    after = foresight.learn(state, sites, reading_of(grown), RECENT)
    assert after["biases"]["conv"] > 0.0
    assert after["calibration"] == 1.0


def test_the_correction_of_a_layer_leans_on_that_of_all():
    state = {**foresight.start(), "biases": {"calm": 0.0, "wild": 1.0}, "spreads": {"calm": 0.0, "wild": 1.0}}
    found = foresight.corrections(state, ["calm", "wild", "new"])
    assert found == pytest.approx(
        {
            "calm": math.exp(0.25 + 0.125),
            "wild": math.exp(0.75 + 0.375),
            "new": math.exp(0.25 + (START_SPREAD + 0.5) / 4),
        }
    )
    assert foresight.corrections(foresight.start(), ["new"]) == {"new": math.exp(START_SPREAD / 2)}
