"""Noise where there is attention: finer at first, and less for what stands behind an exponential."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimgrad.bounds.base import ATTENTION, SUDDEN, ErrorReading, Reading, SiteReading
from slimgrad.bounds.foresight import START_RATIO
from slimgrad.bounds.noise import (
    AIMS,
    AIMS_ATTENDING,
    AT_MOST,
    BY_ENERGY,
    LOOSEN_WITH_ATTENTION,
    NEW,
    YOUNG_WITH_ATTENTION,
    Noise,
)
from slimgrad.bounds.sensitivity import START

E2 = 0.05
QUERY_KEY, OTHER, RESULT = ("attention", 1), ("norm", 1), ("attention", 2)
ROLES = {QUERY_KEY: "attention query, key", OTHER: "layer norm input", RESULT: "attention result"}
OF_ATTENTION = AT_MOST[ATTENTION]
CORRECTION = START_RATIO**0.5  # before anything was compared


def reading(step, noises, layers, role_of=ROLES):
    """Return what each site adds to the gradient, far from where it is saved; by layer."""
    sites = tuple(SiteReading(site, role_of[site], 0, 10_000, 3_000, START, 0.1, 1.0, 0.5) for site in noises)
    errors = tuple(
        ErrorReading((site,), sum(by_layer.values()), by_layer, reach="far") for site, by_layer in noises.items()
    )
    return Reading(step, 1.0, sites, errors=errors, layers=layers)


def spent(bound, site, noise, state):
    """Return what the site adds under its bound."""
    return noise * (bound.at(site, state).eps(1.0) / START) ** 2


def test_a_new_network_is_coded_finer_and_loosened_later():
    bound, rels, state = Noise(E2), [], Noise(E2).start()
    for step in (1, YOUNG_WITH_ATTENTION - 1, YOUNG_WITH_ATTENTION):
        near = reading(step, {QUERY_KEY: {"proj": 5e-4}}, {"proj": 1.0})
        own = replace(near.errors[0], reach="own")
        state = bound.update(state, replace(near, errors=(own, *near.errors)))
        rels.append(bound.at(QUERY_KEY, state).eps(1.0))
    assert rels[0] == rels[1] == START / 2
    assert rels[2] == pytest.approx(LOOSEN_WITH_ATTENTION * START / 2)


def test_nobody_has_a_turn_before_the_next_round_for_want_of_a_measurement():
    bound, state = Noise(E2), Noise(E2).start()
    for step in (1, YOUNG_WITH_ATTENTION):
        near = reading(step, {QUERY_KEY: {"proj": 1e-7}}, {"proj": 1.0})
        state = bound.update(state, replace(near, errors=(replace(near.errors[0], reach="own"), *near.errors)))
    assert state["sites"]["attention#1"]["due"] == 100


def test_errors_of_attention_take_a_part_of_the_budget_and_the_others_all_that_is_left():
    bound = Noise(E2, cap=1e6)
    noises = {site: {"first": 0.1, "second": 0.1} for site in ROLES}
    state = bound.update(bound.start(), reading(1, noises, {"first": 0.5, "second": 0.5}))
    query_key, other, result = (spent(bound, site, 0.2, state) for site in (QUERY_KEY, OTHER, RESULT))
    aim = AIMS_ATTENDING[0][0] * E2 / CORRECTION
    assert 0.9 * OF_ATTENTION < (query_key + result) / aim <= OF_ATTENTION * (1 + 1e-6)
    assert 0.9 < (query_key + result + other) / aim <= 1 + 1e-6


@pytest.mark.parametrize(
    ("role", "part"),
    [(role, part) for roles, part in AT_MOST.items() for role in sorted(roles)] + [("gelu input", 1.0)],
)
def test_what_stands_behind_an_exponential_takes_a_part_of_what_any_layer_may_suffer(role, part):
    bound = Noise(E2)
    noises, roles = {RESULT: {"small": 0.01}, OTHER: {"large": 0.001}}, {**ROLES, RESULT: role}
    state = bound.update(bound.start(), reading(1, noises, {"small": 0.01, "large": 0.99}, roles))
    ((_, aim), _), of_small = AIMS_ATTENDING if role in SUDDEN else AIMS, spent(bound, RESULT, 0.01, state) / 0.01
    assert 0.9 * part < of_small / (aim * bound.cap * E2 / CORRECTION) <= part * 1.001


@pytest.mark.parametrize("role", ["attention query, key", "gelu input"])
def test_layers_may_suffer_less_in_a_new_network_than_in_an_old_one(role):
    bound, roles = Noise(E2), {RESULT: "layer norm input", OTHER: role}
    noises = {RESULT: {"small": 0.01}, OTHER: {"large": 1e-6}}
    aims = []
    for step in (NEW * bound.every - 1, NEW * bound.every):
        state = bound.update(bound.start(), reading(step, noises, {"small": 0.01, "large": 0.99}, roles))
        aims.append(spent(bound, RESULT, 0.01, state) / 0.01 / (bound.cap * E2 / CORRECTION))
    expected = [of_layer for _, of_layer in (AIMS_ATTENDING if role in ATTENTION else AIMS)]
    assert aims == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("weights", [{}, {"first": 0.1, "second": 0.9}])
def test_where_parameters_weigh_alike_less_is_spent_by_energy(weights):
    bound, site = Noise(E2, cap=1e6), {OTHER: {"first": 0.2}}
    read = reading(1, site, {"first": 0.9, "second": 0.1})
    state = bound.update(bound.start(), replace(read, weights=weights))
    by_energy = spent(bound, OTHER, 0.2, state) / (AIMS[0][0] * E2 / CORRECTION)
    most = BY_ENERGY if weights else 1.0
    assert 0.9 * most < by_energy <= most * (1 + 1e-6)
