"""Whose errors Noise measures in a step, and when each site has its next turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimgrad.bounds import turns
from slimgrad.bounds.base import ErrorReading, Reading, Request, SiteReading, site_key
from slimgrad.bounds.foresight import YOUNG
from slimgrad.bounds.rates import EXACT_BITS, FINEST_STEP
from slimgrad.bounds.sensitivity import ALL, START, seen
from slimgrad.bounds.turns import ABSENT, LEFT_OUT_BITS, QUOTA

EVERY = 100
SMALL = ("small", 1)


def site_reading(site, role="conv input", numel=10_000):
    return SiteReading(site, role, 0, numel, numel // 3, START, 0.1, 1.0, 0.5)


def entry_of(reading, noise=1e-4, n=1, due=0):
    """Return what is known of a site that adds this noise at rel = 1, after n measurements."""
    entry = seen(None, reading, 1.0) | {"due": due, "last": 0}
    entry["far" if entry["travels"] else "own"] = {"noise": noise, "shares": {}, "n": n, "at": 0}
    return entry


def sites_of(count, role="conv input", **how):
    return {site_key((f"layer{i}", 1)): entry_of(site_reading((f"layer{i}", 1), role), **how) for i in range(count)}


def measured(step, *sites, absent=(), rms=1.0):
    readings = [SiteReading(site, "conv input", 0, 10_000, 3333, START, 0.1, rms, 1.0) for site in sites]
    return Reading(step, 1.0, tuple(one for one in readings if one.site not in absent))


def wanted(step, sites):
    return turns.request(step, sites, EVERY)


def to_follow(step, sites):
    """Return the sites whose errors are followed, told apart or at once."""
    request = wanted(step, sites)
    assert not (request.travels and request.at_once)
    return request.travels | request.at_once


def test_in_a_round_all_that_fit_go_together_those_first_that_add_the_most(monkeypatch):
    sites = sites_of(40)
    for number, entry in enumerate(sites.values()):
        entry["own"]["noise"] = 1e-4 * number
    monkeypatch.setattr(turns, "QUOTA", QUOTA / 2)
    room = int(40 * QUOTA / 2 * EXACT_BITS / LEFT_OUT_BITS) - 1  # the last one does not fit beside the norm
    travelling = {site_key(("norm", 1)): entry_of(site_reading(("norm", 1), "layer norm input", numel=10), noise=1.0)}
    chosen = to_follow(2, {**sites, **travelling})
    assert chosen == {("norm", 1)} | {(f"layer{i}", 1) for i in range(40 - room, 40)}


def test_whoever_is_due_all_of_its_role_go_along():
    sites = sites_of(20, "layer norm input", due=1000)
    assert not to_follow(2, sites)
    sites["layer7#1"]["due"] = 2
    assert to_follow(2, sites) == {(f"layer{i}", 1) for i in range(20)}


def test_errors_that_travel_are_followed_by_roles():
    norms = sites_of(20, "layer norm input", noise=1e-3)
    gelus = {"gelu#1": entry_of(site_reading(("gelu", 1), "gelu input"))}
    assert to_follow(2, {**norms, **gelus}) == {(f"layer{i}", 1) for i in range(20)}
    for entry in norms.values():
        entry["due"] = 1000
    assert to_follow(2, {**norms, **gelus}) == {("gelu", 1)}


def test_errors_that_stay_go_along_with_any_role():
    sites = {**sites_of(9, "layer norm input"), site_key(SMALL): entry_of(site_reading(SMALL, numel=10), due=1000)}
    assert to_follow(2, sites) == {(f"layer{i}", 1) for i in range(9)} | {SMALL}


@pytest.mark.parametrize("role", ["layer norm input", "batch norm input"])
def test_sites_are_told_apart_in_each_turn_and_batch_norms_only_in_some(role):
    sites = {**sites_of(3, role, n=0), site_key(SMALL): entry_of(site_reading(SMALL, numel=10))}
    travelling = {(f"layer{i}", 1) for i in range(3)}
    assert wanted(2, sites) == Request(travels=travelling | {SMALL}, looks=travelling, is_rough=True)
    is_alike = role == turns.ALIKE
    for turn in range(1, 5):
        for key in sites.keys() - {site_key(SMALL)}:
            sites[key]["far"]["n"] = turn
        if is_alike and turn % turns.APART_EVERY:
            assert wanted(2, sites) == Request(at_once=travelling | {SMALL}, is_rough=True)
        else:
            looks = set() if is_alike else travelling
            assert wanted(2, sites) == Request(travels=travelling | {SMALL}, looks=looks, is_rough=True)
    sites["layer2#1"]["far"]["n"] = 0  # one that is new
    assert wanted(2, sites).looks >= {("layer2", 1)}


def test_an_error_that_stays_is_told_apart_before_it_is_measured_at_once():
    sites = {**sites_of(3, "batch norm input"), site_key(SMALL): entry_of(site_reading(SMALL, numel=10), n=0)}
    assert SMALL in wanted(2, sites).travels
    sites[site_key(SMALL)]["own"]["n"] = 1
    assert SMALL in wanted(2, sites).at_once


def test_what_is_coded_as_finely_as_can_be_is_followed_once_and_then_looked_at_alone():
    sites = sites_of(1, "layer norm input", n=0)
    sites["layer0#1"]["rel"] = FINEST_STEP / 2.0
    assert wanted(2, sites).travels == {("layer0", 1)}
    sites["layer0#1"]["far"]["n"] = 1
    assert wanted(2, sites) == Request(errors=frozenset({("layer0", 1)}))


def test_between_rounds_the_smallest_are_looked_at():
    sites = {**sites_of(10, due=1000), site_key(SMALL): entry_of(site_reading(SMALL, numel=100), due=1000)}
    asked = {step: wanted(step, sites) for step in range(1, 101)}
    assert {step: request for step, request in asked.items() if not request.is_empty} == dict.fromkeys(
        (25, 50, 75, 100), Request(errors=frozenset({SMALL}), is_look=True, is_rough=True)
    )


@pytest.mark.parametrize("role", ["attention query, key", "log-softmax result"])
def test_what_stands_behind_an_exponential_is_looked_at_as_well(role):
    keys, gelus = (sites_of(9, role, due=1000) for role in (role, "gelu input"))
    sites = {**keys, **{f"gelu {key}": entry for key, entry in gelus.items()}}
    request = wanted(150, sites)
    assert request == Request(looks=frozenset((f"layer{i}", 1) for i in range(9)), is_look=True, is_rough=True)
    assert wanted(151, sites).is_empty


def test_what_attention_reads_is_followed_together():
    sites = sites_of(2, "attention query, key")
    sites["result#1"], sites["norm#1"] = (sites_of(1, role)["layer0#1"] for role in ("attention result", "gelu input"))
    assert to_follow(2, sites) in ({("layer0", 1), ("layer1", 1), ("result", 1)}, {("norm", 1)})
    sites["norm#1"]["due"] = 10_000
    assert to_follow(2, sites) == {("layer0", 1), ("layer1", 1), ("result", 1)}


def test_those_are_looked_at_that_take_the_most_of_what_a_layer_may_suffer():
    sites = sites_of(10, due=1000)
    for number, entry in enumerate(sites.values()):
        entry["own"]["shares"] = {"layer": 0.01 * number, ALL: 1.0 - 0.01 * number}
    sites["layer3#1"]["near"]["shares"] = {"other": 0.5}
    assert wanted(25, sites).looks == {("layer3", 1), ("layer9", 1)}
    sites["layer3#1"]["rel"] /= 10.0
    assert wanted(25, sites).looks == {("layer8", 1), ("layer9", 1)}


def test_looks_come_half_as_often_in_a_network_that_has_settled():
    sites = {**sites_of(10, due=10_000), site_key(SMALL): entry_of(site_reading(SMALL, numel=100), due=10_000)}
    asked = [step for step in range(1, 301) if not wanted(step, sites).is_empty]
    assert asked == [25, 50, 75, 100, 150, 200, 250, 300]


def test_where_all_is_exact_it_asks_now_and_then():
    sites = sites_of(2)
    for entry in sites.values():
        entry["rel"] = 0.0
    asked = [step for step in range(1, 301) if not wanted(step, sites).is_empty]
    assert asked == [1, 2, 5, 10, 20, 50, 100, 200, 300]


def after(sites, reading, noises=None):
    """Return the sites after a reading in which some were found to add other noises than was known."""
    found = {key: {**entry, "fresh": True} for key, entry in sites.items()}
    for key, entry in found.items():
        part = "far" if entry["travels"] else "own"
        noise = (noises or {}).get(key, entry[part]["noise"])
        found[key][part] = {**entry[part], "noise": noise, "n": entry[part]["n"] + 1}
    turns.give(found, sites, reading, EVERY, 1e-9)
    return found


def followed(step, *sites, reach="far"):
    """Return a reading in which the errors of these were followed together."""
    return replace(measured(step, *sites), errors=(ErrorReading(sites, 1e-4, {}, reach),))


@pytest.mark.parametrize("reach", ["far", "all"])
@pytest.mark.parametrize("role", ["conv input", "batch norm input", "layer norm input"])
def test_a_site_sits_out_every_other_round_but_waits_not_for_a_far_older_network(role, reach):
    sites, steps = sites_of(1, role, n=0), []
    turns.give(sites, sites, measured(1, ("layer0", 1)), EVERY, 1e-9)  # gradients alone
    for step in range(2, 1000):
        if sites["layer0#1"]["due"] <= step:
            sites = after(sites, followed(step, ("layer0", 1), reach=reach))
            steps.append(step)
    assert steps == [5, 20, 50, 100, 200, 400, 600, 800]


@pytest.mark.parametrize(("noise", "due"), [(1.3e-4, 400), (1.5e-4, 300)])
def test_where_errors_grow_as_a_whole_no_round_is_sat_out(noise, due):
    sites = sites_of(4, "layer norm input", due=200)
    for reach in ("far", "all"):
        reading = followed(200, *((f"layer{i}", 1) for i in range(4)), reach=reach)
        found = after(sites, reading, dict.fromkeys(sites, noise))
        assert {entry["due"] for entry in found.values()} == {due}
    one = after(sites, followed(200, *((f"layer{i}", 1) for i in range(4))), {"layer0#1": 2e-4})
    assert {entry["due"] for entry in one.values()} == {400}


def test_those_that_went_along_have_their_next_turn_with_the_others():
    sites = sites_of(2, "layer norm input", due=1000)
    sites["layer0#1"]["due"] = 200
    found = after(sites, followed(200, ("layer0", 1), ("layer1", 1)))
    assert {entry["due"] for entry in found.values()} == {400}
    convs = sites_of(1, due=300)
    reading = followed(200, ("layer0", 1))
    reading = replace(reading, errors=(*reading.errors, ErrorReading((("conv", 1),), 1e-4, {}, "own")))
    found = after(
        {"conv#1": convs["layer0#1"], **sites}, replace(reading, sites=(*reading.sites, site_reading(("conv", 1))))
    )
    assert found["conv#1"]["due"] == 400


def test_a_site_that_adds_more_than_expected_is_not_loosened():
    sites, reading = sites_of(1), measured(100, ("layer0", 1))
    assert after(sites, reading, {"layer0#1": 1.4e-4})["layer0#1"]["fresh"]
    assert not after(sites, reading, {"layer0#1": 1e-3})["layer0#1"]["fresh"]


@pytest.mark.parametrize(
    ("role", "noise", "due"),
    [("layer norm input", 1e-4, 700), ("layer norm input", 1e-3, 200), ("conv input", 1e-3, 700)],
)
def test_a_look_between_rounds_changes_no_turn_but_for_a_surprise_that_travels(role, noise, due):
    sites = sites_of(1, role, due=700)
    assert after(sites, measured(125, ("layer0", 1)), {"layer0#1": noise})["layer0#1"]["due"] == due


def test_sites_that_did_not_run_or_had_no_gradient_leave_their_turn_to_others():
    sites, first, second = sites_of(2), ("layer0", 1), ("layer1", 1)
    absent = after(sites, measured(3, first, second, absent=(first,)))
    assert absent["layer0#1"]["due"] == 3 + ABSENT
    assert after(sites, measured(3, first, second))["layer0#1"]["due"] > 4


def test_those_in_a_hurry_have_their_next_turn_together():
    sites = sites_of(3, due=700)
    turns.hurry(sites, ["layer0#1", "layer2#1"], 108, EVERY, YOUNG)
    assert [entry["due"] for entry in sites.values()] == [125, 700, 125]
    turns.hurry(sites, ["layer0#1"], 130, EVERY, YOUNG)
    assert sites["layer0#1"]["due"] == 125


@pytest.mark.parametrize(("step", "due"), [(20, 50), (25, 50), (50, 75)])
def test_nobody_hurries_while_no_bound_may_be_loosened(step, due):
    sites = sites_of(1, due=700)
    turns.hurry(sites, ["layer0#1"], step, EVERY, young=50)
    assert sites["layer0#1"]["due"] == due


def test_the_smallest_sites_are_those_that_fit_in_a_share_of_all_values():
    sites = {
        name: entry_of(site_reading((name, 1), numel=numel)) for name, numel in (("a", 880), ("b", 20), ("c", 100))
    }
    assert [turns.smallest(sites, share) for share in (0.01, 0.1, 0.12)] == [set(), {"b"}, {"b", "c"}]
