"""The contract of bounds: fixed ones keep it by staying as they are."""

from __future__ import annotations

import json

import pytest

from slimgrad import consumers
from slimgrad.bounds import Absolute, Exact, Relative
from slimgrad.bounds.base import (
    ATTENTION,
    LOG_SOFTMAX,
    NOTHING,
    SUDDEN,
    Reading,
    Request,
    is_due,
    site_key,
    site_of,
    with_sites,
)
from slimgrad.bounds.turns import ALIKE
from slimgrad.roles import Role

SITE = ("layer1.0.conv", 2)


@pytest.mark.parametrize("bound", [Exact(), Absolute(0.1), Relative(0.25)], ids=repr)
def test_a_fixed_bound_keeps_the_contract_by_staying_as_it_is(bound):
    state = bound.start()
    assert bound.at(SITE, state) is bound
    assert all(bound.wants(step, state).is_empty for step in range(1, 1001))
    assert bound.update(state, Reading(1, 1.0, ())) == state
    assert bound.noise(state) is None


def test_fixed_bounds_stay_values_without_a_dict():
    assert not hasattr(Relative(0.25), "__dict__")
    assert {Relative(0.25), Relative(0.25), Exact()} == {Exact(), Relative(0.25)}


def test_roles_that_bounds_know_by_name_have_these_names():
    names = {role.name for role in vars(consumers).values() if isinstance(role, Role)}
    assert names >= ATTENTION | LOG_SOFTMAX | {ALIKE}
    assert ATTENTION > SUDDEN


def test_statistics_are_due_often_at_first_then_every_n():
    assert [step for step in range(1, 301) if is_due(step, 100)] == [1, 2, 5, 10, 20, 50, 100, 200, 300]


def test_a_request_is_empty_only_if_it_names_no_site():
    assert NOTHING.is_empty
    assert not Request(gradients=None).is_empty
    assert not Request(errors=frozenset({SITE})).is_empty
    assert not Request(looks=frozenset({SITE})).is_empty


@pytest.mark.parametrize("site", [SITE, ("", -1), ("odd#name", 0)])
def test_sites_are_keys_and_back(site):
    assert site_of(site_key(site)) == site


def test_with_sites_replaces_entries_and_leaves_the_old_state_alone():
    before = {"n": 1, "sites": {"a#0": {"rel": 0.5}, "b#0": {"rel": 0.1}}}
    kept = json.dumps(before)
    after = with_sites(before, {("a", 0): {"rel": 0.25}, ("c", 1): {"rel": 1.0}})
    assert json.dumps(before) == kept
    assert after == {"n": 1, "sites": {"a#0": {"rel": 0.25}, "b#0": {"rel": 0.1}, "c#1": {"rel": 1.0}}}
