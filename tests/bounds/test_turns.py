"""Whose errors Noise measures in a step, and when each site has its next turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimgrad.bounds import turns
from slimgrad.bounds.base import ErrorReading, Reading, Request, SiteReading, site_key, site_of
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
    return request.travels.union(*request.at_once)


def test_in_a_round_all_that_fit_go_together_those_first_that_add_the_most(monkeypatch):
    sites = sites_of(40)
    for number, entry in enumerate(sites.values()):
        entry["own"]["noise"] = 1e-4 * number
    monkeypatch.setattr(turns, "QUOTA", QUOTA / 2)
    room = int(40 * QUOTA / 2 * EXACT_BITS / LEFT_OUT_BITS) - 1  # the last one does not fit beside the norm
    travelling = {site_key(("norm", 1)): entry_of(site_reading(("norm", 1), "layer norm input", numel=10), noise=1.0)}
    chosen = to_follow(2, {**sites, **travelling})
    assert chosen == {("norm", 1)} | {(f"layer{i}", 1) for i in range(40 - room, 40)}


def test_whoever_is_due_all_go_along():
    norms, gelus = sites_of(20, "layer norm input", due=1000), sites_of(1, "gelu input", due=1000)
    sites = {**norms, "gelu#1": gelus["layer0#1"], site_key(SMALL): entry_of(site_reading(SMALL, numel=10), due=1000)}
    for entry in sites.values():
        entry["apart"] = 1
    assert not to_follow(2, sites)
    sites["layer7#1"]["due"] = 2
    assert to_follow(2, sites) == {(f"layer{i}", 1) for i in range(20)} | {("gelu", 1), SMALL}


@pytest.mark.parametrize("role", ["layer norm input", "batch norm input"])
def test_sites_are_told_apart_the_first_time_and_batch_norms_in_some_turns_more(role):
    sites = {**sites_of(3, role, n=0), site_key(SMALL): entry_of(site_reading(SMALL, numel=10))}
    travelling = {(f"layer{i}", 1) for i in range(3)}
    assert wanted(2, sites) == Request(travels=travelling | {SMALL}, looks=travelling, is_rough=True)
    for turn in range(1, 9):
        for key in sites.keys() - {site_key(SMALL)}:
            sites[key]["far"]["n"] = turn
        if role == turns.ALIKE and turn % turns.APART_EVERY == 0:
            assert wanted(2, sites) == Request(travels=travelling | {SMALL}, is_rough=True)
        else:
            assert wanted(2, sites) == Request(at_once=(travelling | {SMALL},), is_rough=True)
    sites["layer2#1"]["far"]["n"] = 0  # one that is new
    assert wanted(2, sites).looks >= {("layer2", 1)}


KINDS = {"norm": "layer norm input", "gelu": "gelu input", "key": "attention query, key"}
KINDS |= {"result": "attention result", "logits": "log-softmax result"}


def sites_of_all_kinds(due, apart):
    """Return one site of each of some roles, and one whose error goes nowhere."""
    sites = {f"{name}#1": sites_of(1, role, due=due)["layer0#1"] for name, role in KINDS.items()}
    sites[site_key(SMALL)] = entry_of(site_reading(SMALL, numel=10), due=due)
    for entry in sites.values():
        entry["apart"] = apart
    return sites


def of_all(sites, reading):
    """Return the reading with the sites that ran as well and of which nothing was measured."""
    missing = {site_of(key) for key in sites} - {one.site for one in reading.sites}
    return replace(reading, sites=(*reading.sites, *measured(reading.step, *missing, rms=0.0).sites))


@pytest.mark.parametrize(("apart", "step"), [(10, 60), (50, 300), (400, 1000)])
def test_in_a_network_six_times_as_old_kinds_are_measured_each_by_itself(apart, step):
    sites = sites_of_all_kinds(due=step, apart=apart)
    sets = wanted(step, sites).at_once
    assert sorted(sorted(path for path, _ in one - {SMALL}) for one in sets) == [
        ["gelu"], ["key", "logits", "result"], ["norm"],
    ]  # fmt: skip
    assert sum(SMALL in one for one in sets) == 1
    errors = tuple(ErrorReading(tuple(sorted(one)), 1e-4, {}, "all") for one in sets)
    sites = after(sites, replace(followed(step, *set().union(*sets)), errors=errors))
    assert all(entry["apart"] == (step if entry["travels"] else apart) for entry in sites.values())
    assert wanted(step + 1, sites).is_empty


@pytest.mark.parametrize(("apart", "step"), [(10, 59), (50, 299), (400, 999)])
def test_in_a_network_that_is_not_all_kinds_are_measured_together(apart, step):
    sites = sites_of_all_kinds(due=step, apart=apart)
    everything = {(path, 1) for path in (*KINDS, SMALL[0])}
    assert wanted(step, sites).at_once == (everything,)
    assert {entry["apart"] for entry in after(sites, followed(step, *everything, reach="all")).values()} == {apart}


def test_kinds_are_told_apart_where_each_is_looked_at_while_all_are_followed():
    sites = sites_of_all_kinds(due=10, apart=0)
    everything = tuple((path, 1) for path in KINDS)
    reading = followed(10, *everything)
    near = tuple(ErrorReading((site,), 1e-5, {}, "near") for site in everything)
    found = after(sites, replace(reading, errors=(*reading.errors, *near)))
    assert all(found[site_key(site)]["apart"] == 10 for site in everything)


def test_where_there_is_attention_rounds_begin_later_and_looks_come_half_way_between():
    sites = sites_of_all_kinds(due=0, apart=0)
    for entry in sites.values():
        entry["far"]["n"] = entry["own"]["n"] = 0
    turns.give(sites, sites, measured(1, SMALL, *((path, 1) for path in KINDS)), EVERY, 1e-9)
    rounds, looks = [], []
    for step in range(2, 1100):
        request = wanted(step, sites)
        if request.is_look:
            looks.append(step)
        elif not request.is_empty:
            sets, reach = (request.at_once, "all") if request.at_once else ((request.travels,), "far")
            errors = [ErrorReading(tuple(one), 1e-4, {}, reach) for one in sets]
            errors += [ErrorReading((site,), 1e-5, {}, "near") for site in request.looks]
            sites = after(sites, replace(of_all(sites, followed(step, *set().union(*sets))), errors=tuple(errors)))
            rounds.append((step, len(sets)))
    assert rounds == [(10, 1), (50, 1), (100, 3), (200, 1), (400, 1), (600, 3), (800, 1), (1000, 1)]
    assert looks == list(range(150, 1100, 100))


def test_an_error_that_stays_is_told_apart_before_it_is_measured_at_once():
    sites = {**sites_of(3, "batch norm input"), site_key(SMALL): entry_of(site_reading(SMALL, numel=10), n=0)}
    assert SMALL in wanted(2, sites).travels
    sites[site_key(SMALL)]["own"]["n"] = 1
    assert SMALL in wanted(2, sites).at_once[0]


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


def test_sites_that_run_no_more_are_waited_for_ever_longer():
    sites, asked = {**sites_of(1), "gone#1": sites_of(1, due=10)["layer0#1"]}, []
    sites["layer0#1"]["due"], sites["gone#1"]["last"] = 10_000, 8
    for step in range(10, 500):
        if sites["gone#1"]["due"] <= step:
            sites = after(sites, measured(step, ("layer0", 1)))
            sites["layer0#1"]["due"] = 10_000
            asked.append(step)
    assert asked == [10, 16, 24, 40, 72, 136, 264]


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
