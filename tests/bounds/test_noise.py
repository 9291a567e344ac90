"""Noise: readings move the bounds of sites, within the budget and with caution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from slimgrad import Exact, Relative
from slimgrad.bounds import foresight, turns
from slimgrad.bounds.base import ErrorReading, Reading, Request, SiteReading, site_key
from slimgrad.bounds.foresight import MOST_OF_ALL, START_RATIO, YOUNG
from slimgrad.bounds.noise import AIMS, LOOSEN, LOOSEN_TRIFLE, Noise
from slimgrad.bounds.rates import FINEST_STEP
from slimgrad.bounds.sensitivity import START, loads
from slimgrad.errors import ConfigError

FIRST, SECOND = ("conv1", 1), ("conv2", 1)
(AIM, LAYER_AIM), _ = AIMS  # of a new network


def site_reading(site, rel=START, numel=10_000):
    return SiteReading(site, "conv input", 0, numel, numel // 3, rel, 0.1, 1.0, 0.5)


def reading(step, noise, rel=START, sites=(FIRST, SECOND), share=0.5):
    """Return a reading in which each site's error is this share of the gradient's energy, all of it in its layer."""
    errors = tuple(ErrorReading((site,), noise, {site[0]: noise}) for site in sites)
    layers = {site[0]: share for site in sites}
    return Reading(step, 1.0, tuple(site_reading(site, rel) for site in sites), errors=errors, layers=layers)


def rel_of(bound, site, state):
    return bound.at(site, state).eps(1.0)


def test_every_site_starts_at_the_same_relative_bound():
    bound = Noise(0.05)
    assert bound.at(FIRST, bound.start()) == Relative(START)
    assert bound.noise(bound.start()) is None


def test_a_smaller_budget_starts_finer_as_noise_goes_with_the_square():
    one, fifth, more = (Noise(e2).at(FIRST, Noise(e2).start()).eps(1.0) for e2 in (0.05, 0.01, 0.2))
    assert ((one / fifth) ** 2, more) == pytest.approx((5.0, one))


def test_the_first_step_looks_at_every_site_and_keeps_no_original():
    wanted = Noise(0.05).wants(1, Noise(0.05).start())
    assert wanted == Request(gradients=None, errors=frozenset(), travels=frozenset())


def test_where_nothing_is_coded_it_asks_now_and_then():
    bound = Noise(0.05)
    asked = [step for step in range(1, 301) if not bound.wants(step, bound.start()).is_empty]
    assert asked == [1, 2, 5, 10, 20, 50, 100, 200, 300]


def test_where_all_is_exact_it_asks_now_and_then_and_tries_again():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 1e9))
    assert not any(entry["rel"] for entry in state["sites"].values())
    nothing = replace(reading(2, 0.0), sites=(), errors=())
    for step in range(2, 20_000):
        if not bound.wants(step, state).is_empty:
            state = bound.update(state, replace(nothing, step=step))
    assert all(entry["rel"] for entry in state["sites"].values())


def test_a_layer_whose_gradient_is_nothing_but_error_is_broken_and_no_more():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.01))
    gone = replace(reading(2, 0.01), layers=dict.fromkeys(reading(2, 0.01).layers, 0.0))
    assert not bound.update(state, gone)["broken"]  # once is chance
    for step in range(2, 20):
        state = bound.update(state, replace(gone, step=step))
    assert state["broken"]
    assert all(math.isfinite(share) for _, share in state["broken"].values())


def test_too_much_noise_tightens_at_once_and_meets_the_aim():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.2))
    assert rel_of(bound, FIRST, state) < START
    assert 0.7 < bound.noise(state) / (AIM * 0.05) <= 1 + 1e-6


@pytest.mark.parametrize(("noise", "most"), [(1e-3, LOOSEN), (1e-6, LOOSEN * LOOSEN_TRIFLE)])
def test_little_noise_loosens_slowly_and_only_after_a_second_measurement_and_in_no_new_network(noise, most):
    bound = Noise(0.05)
    once = bound.update(bound.start(), reading(1, noise))
    assert rel_of(bound, FIRST, once) <= START
    assert rel_of(bound, FIRST, bound.update(once, reading(YOUNG - 1, noise))) <= START
    twice = bound.update(once, reading(YOUNG, noise))
    assert rel_of(bound, FIRST, twice) == pytest.approx(START * most)


def test_what_adds_much_more_than_it_did_is_not_loosened_unless_it_is_a_trifle():
    bound = Noise(0.05)
    known = bound.update(bound.update(bound.start(), reading(1, 1e-7, START / 16)), reading(2, 1e-7, START / 16))
    rel = rel_of(bound, FIRST, known)
    same, trifle, grown = (bound.update(known, reading(3, noise, rel)) for noise in (1.6e-6, 1e-5, 1e-3))
    assert rel_of(bound, FIRST, same) > rel
    assert rel_of(bound, FIRST, trifle) > rel
    assert rel_of(bound, FIRST, grown) == rel


def test_what_is_expected_is_the_share_of_energy_also_where_layers_weigh_otherwise():
    bound = Noise(0.05)
    alike = {"layers": {"conv1": 0.9, "conv2": 0.1}, "weights": {"conv1": 0.5, "conv2": 0.5}}
    state = bound.update(bound.start(), replace(reading(1, 0.01), **alike))
    rel2 = sum((rel_of(bound, site, state) / START) ** 2 for site in (FIRST, SECOND))
    assert bound.noise(state) == pytest.approx(START_RATIO**0.5 * 0.01 * rel2)
    assert 0.0 < rel2 < 2.0


@pytest.mark.parametrize(("every", "learns"), [(100, False), (400, True)])
def test_how_long_ago_a_measurement_says_something_goes_by_the_rounds(every, learns):
    bound = Noise(0.05, every=every)
    known = bound.update(bound.start(), reading(1000, 1e-4))
    later = bound.update(known, reading(1600, 1e-2, rel_of(bound, FIRST, known)))
    assert (later["ratios"] != known["ratios"]) is learns


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
    once = bound.audited(state, 2 * expected, {}, 1)
    assert foresight.correction(state) < foresight.correction(once) < 2.0
    for _ in range(100):
        once = bound.audited(once, 1000.0, {}, 1)
    assert foresight.correction(once) <= MOST_OF_ALL
    assert bound.audited(state, math.nan, {}, 1) == state


def expected_of(state, layer):
    return loads(state["sites"])[layer]


def test_a_layer_of_little_energy_is_kept_within_its_own_limit():
    bound = Noise(0.05)
    state = bound.start()
    for step in range(1, 5):  # the error is a hundredth of the whole, and as large as the layer's own gradient
        state = bound.update(state, reading(step, 0.01, rel_of(bound, FIRST, state), sites=(FIRST,), share=0.01))
    assert expected_of(state, "conv1") <= bound.cap * 0.05
    assert bound.noise(state) < 0.1 * AIM * 0.05  # so most of the budget is left


def load_after(bound, factors):
    """Return what is expected in a layer that is limited by its cap, and adds so many times its usual noise."""
    state = bound.start()
    for step, factor in enumerate(factors, start=foresight.YOUNG):
        rel = rel_of(bound, FIRST, state)
        noise = 0.01 * factor * (rel / START) ** 2
        state = bound.update(state, reading(step, noise, rel, sites=(FIRST,), share=0.01))
    return expected_of(state, "conv1")


def test_layers_whose_errors_scatter_stay_farther_below_their_limit():
    bound = Noise(0.05)
    calm, wild = load_after(bound, [1.0] * 20), load_after(bound, [0.4, 2.5] * 10)
    assert 0.9 * LAYER_AIM < calm / (bound.cap * 0.05) <= LAYER_AIM * (1 + 1e-6)
    assert wild < 0.9 * calm


def test_a_broken_limit_is_said_and_what_causes_it_tightened():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 0.01, share=0.5))
    before = rel_of(bound, FIRST, state)
    errors = {"conv1": 0.3, "conv2": 0.005}  # of the whole; each layer holds half of it
    for step in (7, 8, 9):
        state = bound.audited(state, 0.04, errors, step)
    assert rel_of(bound, FIRST, state) < before
    assert rel_of(bound, FIRST, state) < rel_of(bound, SECOND, state)
    assert any("conv1, 0.6 at step 9" in line for line in bound.remarks(state))
    assert not any("conv2" in line for line in bound.remarks(state))


def test_what_is_exact_is_tried_again():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 1e9, sites=(FIRST,)))
    assert bound.at(FIRST, state) == Exact()
    for step in range(100, 6000, 50):
        state = bound.update(state, Reading(step, 1.0, ()))
    assert isinstance(bound.at(FIRST, state), Relative)


def test_a_site_that_runs_no_more_leaves_its_share_to_the_others():
    bound = Noise(0.05, every=10, cap=math.inf)
    both, state = (FIRST, SECOND), bound.start()
    for step in range(1, 101):
        rel = rel_of(bound, FIRST, state)
        state = bound.update(state, reading(step, 0.02 * (rel / START) ** 2, rel, both))
    before = rel_of(bound, FIRST, state)
    asked = 0
    for step in range(101, 401):
        rel = rel_of(bound, FIRST, state)
        if not bound.wants(step, state).is_empty:
            asked += 1
            state = bound.update(state, reading(step, 0.02 * (rel / START) ** 2, rel, (FIRST,)))
    assert list(state["sites"]) == [site_key(FIRST)]
    assert rel_of(bound, FIRST, state) > 1.2 * before
    assert asked < 100  # and nobody waits for it


def test_small_tensors_are_coded_finely():
    bound = Noise(0.05)
    sites = (site_reading(FIRST, numel=10_000), site_reading(SECOND, numel=10))
    state = bound.update(bound.start(), Reading(1, 1.0, sites))
    assert rel_of(bound, SECOND, state) == FINEST_STEP / 2


def test_where_parameters_move_alike_each_layer_counts_by_its_size():
    bound, even = Noise(0.05), {"conv1": 0.5, "conv2": 0.5}
    errors = (ErrorReading((FIRST,), 1e-4, {"conv1": 1e-4}), ErrorReading((SECOND,), 1e-4, {"conv2": 1e-4}))
    sites, layers = tuple(site_reading(site) for site in (FIRST, SECOND)), {"conv1": 0.999, "conv2": 0.001}
    by_energy = bound.update(bound.start(), Reading(1, 1.0, sites, 1.0, errors, layers))
    alike = bound.update(bound.start(), Reading(1, 1.0, sites, 1.0, errors, layers, even))
    assert by_energy["sites"]["conv2#1"]["own"]["noise"] == pytest.approx(1e-4 / START**2)
    assert alike["sites"]["conv2#1"]["own"]["noise"] == pytest.approx(0.5 * 1e-4 / 0.001 / START**2)


def errors_of(step, noise, *sites, rel=START, absent=()):
    """Return a reading in which all sites ran but those absent, and the errors of some were measured."""
    seen = [site_reading(site, rel) for site in (FIRST, SECOND) if site not in absent]
    told = tuple(one if one.site in sites else replace(one, rms=0.0, density=1.0) for one in seen)
    errors = tuple(ErrorReading((site,), noise, {site[0]: noise}) for site in sites)
    return Reading(step, 1.0, told, errors=errors, layers={"conv1": 0.5, "conv2": 0.5})


def test_bounds_are_set_when_all_had_their_turn_and_at_once_when_a_layer_gets_too_much():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 1e-4))
    before = [rel_of(bound, site, state) for site in (FIRST, SECOND)]
    calm = bound.update(state, errors_of(26, 1e-4, FIRST))
    assert [rel_of(bound, site, calm) for site in (FIRST, SECOND)] == before
    alarmed = bound.update(state, errors_of(26, 0.3, FIRST))
    assert rel_of(bound, FIRST, alarmed) < before[0]
    assert alarmed["loads"]["conv1"] < bound.cap * 0.05
    over = bound.update(calm, errors_of(27, 1e-4, SECOND))
    assert rel_of(bound, FIRST, over) > before[0]


def test_without_a_cap_a_small_layer_may_suffer_what_the_whole_allows():
    states = {}
    for cap in (4.0, math.inf):
        bound = Noise(0.05, cap=cap)
        states[cap] = bound.start()
        for step in range(1, 8):
            rel = rel_of(bound, FIRST, states[cap])
            noise = 0.01 * (rel / START) ** 2
            states[cap] = bound.update(states[cap], reading(step, noise, rel, sites=(FIRST,), share=0.01))
        assert bound.noise(states[cap]) <= AIM * 0.05 * (1 + 1e-6)
    assert expected_of(states[4.0], "conv1") <= 4.0 * 0.05 < expected_of(states[math.inf], "conv1")


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, "5%"])
def test_wrong_budgets_and_caps_say_what_to_type(wrong):
    for advice, make in ((r"Noise\(0\.05\)", Noise), (r"Noise\(0\.05, cap=4\.0\)", lambda cap: Noise(cap=cap))):
        for value in (wrong, -math.inf if make is not Noise else math.inf):
            with pytest.raises(ConfigError, match=f"write {advice}"):
                make(value)


def test_an_audit_says_nothing_of_layers_before_every_error_was_measured():
    bound = Noise(0.05)
    one = bound.update(bound.start(), reading(1, 1e-5))
    both = bound.update(one, reading(2, 1e-5, rel_of(bound, FIRST, one)))
    new = replace(site_reading(("conv3", 1)), rel=START)
    partly = bound.update(both, Reading(3, 1.0, (new,), layers={"conv1": 0.5, "conv2": 0.5}))
    for state, learns in ((both, True), (partly, False)):
        after = bound.audited(state, 0.01, {"conv1": 0.05, "conv2": 5e-6}, 3)
        assert (after["ratios"].get("conv1") != state["ratios"].get("conv1")) is learns


def test_an_audit_that_finds_many_times_nothing_changes_no_bound_by_much():
    bound = Noise(0.05)
    state = bound.start()
    for step in range(1, 8):
        rel = rel_of(bound, FIRST, state)
        state = bound.update(state, reading(step, 1e-9 * (rel / START) ** 2, rel))
    load = state["loads"]["conv1"]
    after = bound.audited(state, bound.noise(state), {"conv1": 500 * load, "conv2": 0.5 * load}, 8)
    assert 1000 * load < 0.001 * bound.cap * bound.e2
    assert after["ratios"]["conv1"] < 1.2
    assert rel_of(bound, FIRST, after) >= rel_of(bound, FIRST, state)


def test_without_a_limit_per_layer_an_audit_teaches_none():
    bound = Noise(0.05, cap=math.inf)
    state = bound.update(bound.start(), reading(1, 1e-5))
    state = bound.update(state, reading(2, 1e-5, rel_of(bound, FIRST, state)))
    assert bound.audited(state, 0.01, {"conv1": 0.1}, 3)["ratios"] == state["ratios"]


def test_what_is_always_underestimated_is_expected_in_full_before_long():
    bound = Noise(0.05)
    state = bound.start()
    for step in range(1, 60):  # errors grow by a tenth from each measurement to the next
        rel = rel_of(bound, FIRST, state)
        noise = 1e-4 * 1.1**step * (rel / START) ** 2
        state = bound.update(state, reading(step, noise, rel))
    assert state["calibration"] > 1.05
    assert 2 * noise / bound.e2 < 1.0


def test_while_much_waits_for_a_measurement_the_next_comes_before_the_round():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(210, 1e-3, START / 16))
    state = bound.update(state, reading(211, 1e-3, START / 16))
    assert {entry["due"] for entry in state["sites"].values()} == {225}
    settled = bound.update(bound.start(), reading(210, 0.2))
    settled = bound.update(settled, reading(211, 0.0175, rel_of(bound, FIRST, settled)))
    assert {entry["due"] for entry in settled["sites"].values()} == {400}


def test_what_was_tightened_may_return_at_once_to_where_it_was_measured():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 1e-3))
    for step in (5, 6):
        rel = rel_of(bound, FIRST, state)
        state = bound.update(state, reading(step, 1e-3 * (rel / START) ** 2, rel))
    assert {entry["tried"] for entry in state["sites"].values()} == {rel}
    sites = {key: {**one, "rel": rel / 16, "fresh": False} for key, one in state["sites"].items()}
    after = bound.audited({**state, "sites": sites, "loads": loads(sites)}, 1e-5, {}, 10)
    assert rel_of(bound, FIRST, after) == pytest.approx(rel)


def test_after_a_look_bounds_stay_unless_too_much_was_found():
    bound = Noise(0.05)
    state = bound.update(bound.start(), reading(1, 1e-3))
    for entry in state["sites"].values():
        entry["due"] = 1000
    assert turns.is_look(350, state["sites"], bound.every)
    rels = [rel_of(bound, site, state) for site in (FIRST, SECOND)]
    found = errors_of(350, 1e-6, FIRST)
    calm, alarmed = (
        bound.update(state, replace(found, errors=(replace(found.errors[0], noise2=noise, layers={"conv1": noise}),)))
        for noise in (1e-6, 0.3)
    )
    assert [rel_of(bound, site, calm) for site in (FIRST, SECOND)] == rels
    assert rel_of(bound, FIRST, alarmed) < rels[0]


def test_every_update_is_a_new_state_since_plans_go_by_its_identity():
    bound = Noise(0.05)
    state = bound.start()
    for step in (1, 2, 3):
        before, state = state, bound.update(state, reading(step, 1e-4))
        assert state is not before


def test_audits_are_learnt_from_in_the_order_of_their_layers_whatever_the_hashes_of_names_are():
    bound = Noise(0.05)
    sites = tuple((f"conv{i}", 1) for i in range(40))
    state = bound.update(
        bound.start(), replace(reading(1, 1e-5, sites=sites), layers=dict.fromkeys(dict(sites), 0.025))
    )
    names = [path for path, _ in sites]
    assert list(bound.audited(state, 0.01, dict.fromkeys(names, 1e-3), 2)["ratios"]) == names
    assert list(bound.audited(state, 0.01, dict.fromkeys(names[::-1], 1e-3), 2)["ratios"]) == names[::-1]
