"""What is learnt about sites: parts, layers, and who follows whom."""

from __future__ import annotations

import pytest

from slimgrad.bounds import sensitivity
from slimgrad.bounds.base import NEGLIGIBLE, ErrorReading, Reading, SiteReading, site_key
from slimgrad.bounds.sensitivity import (
    DRIFT,
    FORGOTTEN,
    LEARN,
    START,
    loads,
    noise_of,
    shares_of,
)

NORM, OTHER, CONV = ("norm", 1), ("other", 1), ("conv", 1)


def site_reading(site, role="batch norm input"):
    return SiteReading(site, role, 0, 1000, 300, START, 0.1, 1.0, 1.0, is_centred=True)


def known(*sites):
    return {site_key(site): sensitivity.seen(None, site_reading(site), 1.0) for site in sites}


def reading_of(*errors, layers=None, step=1):
    return Reading(step, 1.0, (), errors=errors, layers=layers or {"norm": 0.1, "conv": 0.4, "first": 0.5})


def learn(sites, *errors, layers=None, step=1):
    reading = reading_of(*errors, layers=layers, step=step)
    for error in errors:
        sensitivity.measure(sites, error, reading, sensitivity.energies_of(reading, {}))


def test_own_and_near_and_far_add_up_without_counting_anything_twice():
    sites = known(NORM)
    learn(
        sites,
        ErrorReading((NORM,), 0.001, {"norm": 0.001}),
        ErrorReading((NORM,), 0.002, {"conv": 0.002}, "near"),
        ErrorReading((NORM,), 0.003, {"conv": 0.002, "first": 0.001}, "far"),
    )
    layers, shares = shares_of(sites)
    assert noise_of(sites["norm#1"]) * START**2 == pytest.approx(0.004)
    assert layers == ["conv", "first", "norm"]
    assert (shares[:, 0] * START**2).tolist() == pytest.approx([0.002 / 0.4, 0.001 / 0.5, 0.001 / 0.1], rel=0.02)


def test_errors_never_followed_are_everywhere_alike():
    sites = known(NORM, CONV)
    learn(sites, ErrorReading((CONV,), 0.001, {"conv": 0.001}))
    _, shares = shares_of(sites)
    assert shares[0, 0] == noise_of(sites["norm#1"]) > 0


def test_sites_of_a_role_follow_one_that_was_followed():
    sites = known(NORM, OTHER)
    before = sites["other#1"]["far"]["noise"]
    learn(sites, ErrorReading((NORM,), 2 * before * START**2, {}, "far"))
    assert sites["other#1"]["far"]["noise"] == pytest.approx(before * 2**DRIFT)


def test_what_several_do_together_is_shared_out_layer_by_layer_as_it_was_expected():
    sites = known(NORM) | {site_key(OTHER): sensitivity.seen(None, site_reading(OTHER, "gelu input"), 1.0)}
    learn(sites, ErrorReading((NORM,), 0.01, {"conv": 0.01}, "far"))
    learn(sites, ErrorReading((OTHER,), 0.01, {"first": 0.01}, "far"))
    before = {key: dict(entry["far"]["shares"]) for key, entry in sites.items()}
    learn(sites, ErrorReading((NORM, OTHER), 0.03, {"conv": 0.01, "first": 0.02}, "far"))
    norm, other = (sites[site_key(site)]["far"]["shares"] for site in (NORM, OTHER))
    assert norm["conv"] == pytest.approx(before["norm#1"]["conv"], rel=0.02)
    assert other["first"] == pytest.approx((1 + LEARN) * before["other#1"]["first"], rel=0.02)
    assert 0.0 < norm["first"] < 0.05 * other["first"]  # it may go there now


def test_what_several_do_together_for_the_first_time_is_shared_out_by_what_each_does_near_by():
    sites = known(NORM, OTHER)
    near = [ErrorReading((site,), noise, {"conv": noise}, "near") for site, noise in ((NORM, 0.001), (OTHER, 0.003))]
    learn(sites, *near, ErrorReading((NORM, OTHER), 0.04, {"first": 0.04}, "far"))
    assert sites["norm#1"]["far"]["noise"] * START**2 == pytest.approx(0.01)
    assert sites["other#1"]["far"]["noise"] * START**2 == pytest.approx(0.03)


def test_of_what_is_measured_at_once_each_part_keeps_its_proportion_in_every_layer():
    sites = known(NORM) | {site_key(OTHER): sensitivity.seen(None, site_reading(OTHER, "gelu input"), 1.0)}
    learn(sites, ErrorReading((NORM,), 0.001, {"norm": 0.001}), ErrorReading((OTHER,), 0.003, {"norm": 0.003}))
    learn(sites, ErrorReading((NORM,), 0.002, {"conv": 0.002}, "far"))
    learn(sites, ErrorReading((OTHER,), 0.004, {"first": 0.004}, "far"))
    before = {key: {part: dict(entry[part]["shares"]) for part in ("own", "far")} for key, entry in sites.items()}
    found = {"norm": 2 * 0.004, "conv": 3 * 0.002, "first": 0.004}
    learn(sites, ErrorReading((NORM, OTHER), sum(found.values()), found, "all"))
    grown = {"norm": 1 + LEARN, "conv": 1 + 2 * LEARN, "first": 1.0}
    for key, entry in sites.items():
        for part, shares in before[key].items():
            for layer, share in shares.items():
                assert entry[part]["shares"][layer] == pytest.approx(grown[layer] * share, rel=0.05)
    assert [(entry["own"]["n"], entry["far"]["n"]) for entry in sites.values()] == [(2, 2), (2, 2)]


def test_a_part_that_was_never_told_apart_learns_nothing_from_what_is_measured_at_once():
    sites = known(NORM, CONV)
    learn(sites, ErrorReading((CONV,), 0.001, {"conv": 0.001}))
    before = sites["norm#1"]["far"]
    learn(sites, ErrorReading((NORM, CONV), 0.005, {"conv": 0.005}, "all"))
    assert sites["norm#1"]["far"] == {**before, "noise": sites["norm#1"]["far"]["noise"]}
    assert sites["conv#1"]["far"]["n"] == 0


def test_what_is_near_follows_what_is_far_where_it_was_not_told_apart():
    sites = known(NORM)
    learn(sites, ErrorReading((NORM,), 0.001, {}, "near"), ErrorReading((NORM,), 0.004, {}, "far"))
    near, far = (sites["norm#1"][part]["noise"] for part in ("near", "far"))
    learn(sites, ErrorReading((NORM,), 0.008, {}, "far"))
    assert sites["norm#1"]["far"]["noise"] == pytest.approx((1 + LEARN) * far)
    assert sites["norm#1"]["near"]["noise"] == pytest.approx((1 + LEARN) * near)


def test_what_is_far_follows_what_is_near():
    sites = known(NORM)
    learn(sites, ErrorReading((NORM,), 0.001, {}, "near"))
    before = sites["norm#1"]["far"]["noise"]
    learn(sites, ErrorReading((NORM,), 0.003, {}, "near"))
    assert sites["norm#1"]["far"]["noise"] == pytest.approx(before * 3**DRIFT)


def test_sites_without_a_measurement_get_the_mean_of_their_role():
    sites = known(NORM, OTHER)
    learn(sites, ErrorReading((NORM,), 0.01, {"norm": 0.01}))
    sensitivity.fill_in(sites)
    assert sites["other#1"]["own"]["noise"] == pytest.approx(0.01 / START**2)


def share_of(sites, layer="norm"):
    return sites["norm#1"]["own"]["shares"][layer] * START**2


def test_figures_are_means_of_what_was_found():
    sites = known(NORM)
    for noise in (0.01, 0.02, 0.0):
        learn(sites, ErrorReading((NORM,), noise, {"norm": noise}))
    assert share_of(sites) * 0.1 == pytest.approx((0.01 + LEARN * 0.01) * (1 - LEARN))


@pytest.mark.parametrize(
    ("reach", "before", "is_forgotten"),
    [("far", 20, False), ("far", 19, True), ("far", 100, False), ("own", 19, True), ("near", 19, False)],
)
def test_what_was_found_in_a_far_younger_network_is_forgotten_but_for_what_is_near(reach, before, is_forgotten):
    sites, now = known(NORM), 20 * FORGOTTEN - 1
    for step, energy in ((before, 0.001), (max(before, now), 0.003)):
        learn(sites, ErrorReading((NORM,), energy, {"norm": energy}, reach), step=step)
    expected = 0.003 if is_forgotten else 0.001 + LEARN * 0.002
    assert sites["norm#1"][reach]["shares"]["norm"] * START**2 == pytest.approx(expected / 0.1)


def test_an_error_is_related_to_the_gradient_without_it_and_to_no_less_than_is_looked_at():
    error = ErrorReading((NORM,), 0.001, {"norm": 0.001})
    noisy, tiny = known(NORM), known(NORM)
    reading = reading_of(error)
    sensitivity.measure(noisy, error, reading, sensitivity.energies_of(reading, {"norm": 2.0}))
    learn(tiny, error, layers={"norm": 0.0})
    assert share_of(noisy) == pytest.approx(0.001 / (0.1 / 3.0))
    assert share_of(tiny) == pytest.approx(0.001 / NEGLIGIBLE)


def test_convolutions_start_from_the_formula_and_norms_from_what_is_typical():
    conv = sensitivity.seen(None, site_reading(CONV, "conv input"), 1.0)
    norm = sensitivity.seen(None, site_reading(NORM), 1.0)
    assert (conv["travels"], norm["travels"]) == (False, True)
    assert norm["far"]["noise"] == sensitivity.TYPICAL


def test_loads_follow_what_is_measured_as_if_all_were_counted_again():
    before = known(NORM, CONV)
    learn(before, ErrorReading((NORM,), 0.001, {"norm": 0.001}), ErrorReading((CONV,), 0.002, {"conv": 0.002}))
    learn(before, ErrorReading((NORM, CONV), 0.001, {"first": 0.001}, "far"))
    after = {key: dict(entry) for key, entry in before.items()}
    learn(after, ErrorReading((CONV,), 0.1, {"conv": 0.1}), step=2)
    moved = sensitivity.moved(loads(before), before, after)
    assert moved == pytest.approx(loads(after))
    assert moved["conv"] > 2 * loads(before)["conv"]
