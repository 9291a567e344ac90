"""Noise: readings move the bounds of sites, within the budget and with caution."""

from __future__ import annotations

import math

import pytest

from slimgrad import Exact, Relative
from slimgrad.bounds.base import ErrorReading, Reading, Request, SiteReading
from slimgrad.bounds.noise import AIM, LOOSEN, START, Noise
from slimgrad.errors import ConfigError

FIRST, SECOND = ("conv1", 1), ("conv2", 1)


def site_reading(site, rel=START, numel=10_000):
    return SiteReading(site, "conv input", 0, numel, numel // 3, rel, 0.1, 1.0, 0.5)


def reading(step, noise, rel=START, sites=(FIRST, SECOND)):
    """Return a reading in which each site's error is this share of the gradient's energy."""
    errors = tuple(ErrorReading((site,), noise, noise) for site in sites)
    return Reading(step, 1.0, tuple(site_reading(site, rel) for site in sites), errors=errors)


def rel_of(bound, site, state):
    return bound.at(site, state).eps(1.0)


def test_every_site_starts_at_the_same_relative_bound():
    bound = Noise(0.05)
    assert bound.at(FIRST, bound.start()) == Relative(START)
    assert bound.noise(bound.start()) is None


def test_the_first_step_measures_everything():
    assert Noise(0.05).wants(1, Noise(0.05).start()) == Request(gradients=None, errors=None, travels=None)


def test_too_much_noise_tightens_at_once_and_meets_the_aim():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.2))
    assert rel_of(bound, FIRST, state) < START
    assert bound.noise(state) <= AIM * 0.05 * (1 + 1e-6)


def test_little_noise_loosens_slowly_and_only_after_a_second_measurement():
    bound = Noise(0.05)
    once = bound.update(bound.start(), reading(1, 1e-6))
    assert rel_of(bound, FIRST, once) <= START
    twice = bound.update(once, reading(2, 1e-6))
    assert START < rel_of(bound, FIRST, twice) <= START * LOOSEN * (1 + 1e-6)


def test_a_bound_is_never_above_two_rms():
    bound = Noise(1.0)
    state = bound.start()
    for step in range(1, 30):
        rel = rel_of(bound, FIRST, state)
        state = bound.update(state, reading(step, 1e-9 * rel**2, rel))
    assert rel_of(bound, FIRST, state) <= 1.0


def test_what_cannot_be_kept_becomes_exact_and_is_said():
    bound = Noise(1e-9)
    state = bound.update(bound.start(), reading(1, 10.0))
    assert bound.at(FIRST, state) == Exact()
    assert any("exactly" in line for line in bound.remarks(state))


def test_the_old_state_is_left_as_it_was():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.2))
    before = rel_of(bound, FIRST, state)
    bound.update(state, reading(2, 5.0))
    assert rel_of(bound, FIRST, state) == before


def test_audits_calibrate_slowly_and_within_limits():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.2))
    expected = bound.noise(state)
    once = bound.audited(state, 2 * expected)
    assert 1.0 < once["calibration"] < 2.0
    for _ in range(100):
        once = bound.audited(once, 1000.0)
    assert once["calibration"] <= 4.0
    assert bound.audited(state, math.nan) == state


@pytest.mark.parametrize("e2", [0.0, -1.0, math.nan, math.inf, "5%"])
def test_wrong_budgets_say_what_to_type(e2):
    with pytest.raises(ConfigError, match=r"write Noise\(0\.05\)"):
        Noise(e2)
