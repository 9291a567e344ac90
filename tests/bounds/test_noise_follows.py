"""Noise: whose errors are followed, when, and how many at once."""

from __future__ import annotations

from dataclasses import replace

from slimgrad.bounds.base import ErrorReading, Reading, Request, SiteReading, site_key
from slimgrad.bounds.noise import QUOTA, Noise
from slimgrad.bounds.rates import FINEST_STEP
from slimgrad.bounds.sensitivity import START

FIRST, SECOND = ("norm1", 1), ("norm2", 1)


def site_reading(site):
    return SiteReading(site, "layer norm input", 0, 10_000, 3333, START, 0.1, 1.0, 0.5)


def followed(bound, state, step, noises):
    """Return the state after a step in which the errors of some norms were followed and added these noises."""
    errors = tuple(
        ErrorReading((site,), noise, {}, reach) for site, noise in noises.items() for reach in ("near", "far")
    )
    return bound.update(state, replace(norms(step, noises), errors=errors))


def norms(step, followed=()):
    both = (site_reading(site) for site in (FIRST, SECOND))
    sites = tuple(one if one.site in followed else replace(one, rms=0.0, density=1.0) for one in both)
    return Reading(step, 1.0, sites, layers={"conv1": 1.0})


def test_errors_that_travel_are_followed_one_by_one_and_again_although_they_went_nowhere():
    bound = Noise(0.05)
    state = bound.update(bound.start(), norms(1))
    turns = []
    for step in [2, 3, *range(100, 1001, 100)]:
        sites = bound.wants(step, state).travels
        turns.append(sites)
        state = followed(bound, state, step, dict.fromkeys(sites, 1e-12))
    assert set(turns[:2]) == {frozenset({FIRST}), frozenset({SECOND})}
    assert all(sum(site in turn for turn in turns[2:]) >= 4 for site in (FIRST, SECOND))


def test_what_is_coded_as_finely_as_can_be_is_followed_once():
    bound = Noise(0.05)
    state = followed(bound, bound.start(), 2, {FIRST: 1e-12, SECOND: 1e-12})
    state["sites"][site_key(FIRST)]["rel"] = FINEST_STEP / 2.0
    request = bound.wants(100, state)
    assert request.travels == {SECOND}
    state["sites"][site_key(SECOND)]["due"] = 200
    assert bound.wants(100, state) == Request(errors=frozenset({FIRST}))


def test_a_role_is_followed_as_one_within_the_quota_of_its_codes():
    bound = Noise(0.05)
    sites = [(f"norm{i}", 1) for i in range(40)]
    state = bound.start()
    for step in (1, 2, 3):
        readings = tuple(site_reading(site) for site in sites)
        errors = tuple(ErrorReading((site,), 1e-6, {}, reach) for site in sites for reach in ("near", "far"))
        state = bound.update(state, Reading(step, 1.0, readings, errors=errors, layers={"conv1": 1.0}))
    together = bound.wants(100, state)
    assert not together.errors
    assert 40 * QUOTA < len(together.travels) < 40  # more than so many originals
