"""AcGc: bounds from the last ten readings, per site, in all three modes; its formulas are tested beside this file."""

import copy
import dataclasses
import json
import math

import pytest
from published_layers import Layer, batch_norm, conv, normal, reading

from slimgrad import Absolute, ConfigError, Exact, Relative
from slimgrad.bounds import acgc_formulas as formulas
from slimgrad.bounds.acgc import LAST, AcGc
from slimgrad.bounds.base import Reader, Reading, State
from slimgrad.bounds.covered import PerChannel
from slimgrad.consumers import BATCH_NORM, CONV, LOG_SOFTMAX

SITE = ("layer", 0)
MODES = [AcGc(), AcGc(expected=True), AcGc(sound=True)]
every_mode = pytest.mark.parametrize("bound", MODES, ids=["published", "expected", "sound"])


def convolution(seed: int = 1, size: float = 1.0) -> Layer:
    x = normal(0, 4, 3, 8, 8).relu()
    return conv(x, size * normal(seed, 4, 5, 8, 8), normal(2, 5, 3, 3, 3), padding=1)


def norm(seed: int = 1) -> Layer:
    return batch_norm(normal(0, 6, 200), normal(seed, 6, 200), 1 + 0.1 * normal(3, 6))


def named(layer: Layer, weight: str) -> Layer:
    return layer._replace(reader=dataclasses.replace(layer.reader, weight=weight))


def after(bound: AcGc, *readings: Reading) -> State:
    state = bound.start()
    for measured in readings:
        state = bound.update(state, measured)
    return state


@every_mode
def test_every_run_starts_at_the_same_bound(bound: AcGc) -> None:
    covered = bound.at(SITE, bound.start())
    assert covered.of(CONV) == covered.of(BATCH_NORM) == Relative(0.25)
    assert covered.of(LOG_SOFTMAX) == Exact()


@every_mode
def test_one_reading_gives_the_formula(bound: AcGc) -> None:
    layer = convolution()
    terms = {
        MODES[0]: formulas.published_terms([layer.reader], layer.x.numel()),
        MODES[1]: formulas.expected_terms([layer.reader]),
        MODES[2]: formulas.sound_terms([layer.reader], layer.x.numel()),
    }[bound]
    assert bound.at(SITE, after(bound, reading(layer))).of(CONV) == Absolute(formulas.layer_bound(terms, 0.5))


def test_a_norm_gets_a_bound_per_channel_and_an_expected_one_in_standard_deviations() -> None:
    layer = norm()
    published, expected, sound = (bound.at(SITE, after(bound, reading(layer))).of(BATCH_NORM) for bound in MODES)
    assert isinstance(published, PerChannel)
    assert isinstance(sound, PerChannel)
    assert len(published.per_channel) == len(sound.per_channel) == 6
    assert isinstance(expected, Relative)
    assert layer.reader.norm is not None
    energies = layer.reader.out_grad2, layer.reader.in_grad2
    terms = formulas.expected_norm_terms(layer.reader.norm, 200, *energies)
    assert expected.rel == formulas.expected_norm_rel(terms, 0.5)
    assert list(sound.per_channel) == formulas.sound_norm_bound(layer.reader.norm, 200, *energies, 0.5)


def test_a_larger_promise_gives_a_coarser_bound() -> None:
    for options in ({}, {"expected": True}, {"sound": True}):
        small, large = (AcGc(e2, **options) for e2 in (0.05, 0.2))
        bounds = [b.at(SITE, after(b, reading(convolution()))).of(CONV).eps(1.0) for b in (small, large)]
        assert bounds[1] == pytest.approx(2 * bounds[0])


def test_numerators_and_denominators_are_averaged_apart() -> None:
    layers = [convolution(seed, size) for seed, size in ((1, 1.0), (2, 3.0), (3, 0.2))]
    weight2 = sum(layer.reader.weight_grad2 for layer in layers)
    out2 = sum(9 * layer.reader.out_grad2 * layer.x.numel() for layer in layers)
    state = after(AcGc(), *(reading(layer, step=step) for step, layer in enumerate(layers, 1)))
    assert AcGc().at(SITE, state).of(CONV).eps(1.0) == pytest.approx(math.sqrt(0.5 * weight2 / out2))


def test_the_eleventh_reading_pushes_the_first_out() -> None:
    ten = [reading(convolution(seed), step=seed) for seed in range(1, LAST + 1)]
    for bound in MODES:
        outlier = reading(convolution(99, 1e-3), step=1)
        assert after(bound, outlier, *ten) == after(bound, *ten)
        assert after(bound, outlier, *ten[1:]) != after(bound, *ten)


def test_sound_takes_the_strictest_of_the_last_ten() -> None:
    bound = AcGc(sound=True)
    alone = [bound.at(SITE, after(bound, reading(convolution(seed)))).of(CONV).eps(1.0) for seed in (1, 2, 3)]
    together = after(bound, *(reading(convolution(seed)) for seed in (1, 2, 3)))
    assert bound.at(SITE, together).of(CONV).eps(1.0) == min(alone)


@every_mode
def test_a_tensor_read_by_a_convolution_and_a_norm_keeps_both_bounds(bound: AcGc) -> None:
    flat = norm()
    as_maps = conv(flat.x.T.reshape(2, 100, 6).permute(0, 2, 1), normal(4, 2, 3, 100), normal(5, 3, 6, 1))
    both = bound.at(SITE, after(bound, reading(flat, as_maps))).of(BATCH_NORM)
    alone = bound.at(SITE, after(bound, reading(as_maps))).of(CONV).eps(1.0)
    assert isinstance(both, PerChannel)
    assert max(both.per_channel) <= alone
    channels = bound.at(SITE, after(bound, reading(flat)))
    if bound.expected:
        rel = channels.of(BATCH_NORM).eps(1.0)
        limits = [rel * std for std in flat.x.std(1, unbiased=False)]
    else:
        limits = channels.of(BATCH_NORM).per_channel  # type: ignore[attr-defined]
    assert all(eps <= limit * 1.001 for eps, limit in zip(both.per_channel, limits, strict=True))


@every_mode
def test_a_tensor_that_somebody_else_reads_as_well_is_exact(bound: AcGc) -> None:
    stranger = Layer(convolution().x, Reader("gelu"), convolution().gradients, ())
    assert bound.at(SITE, after(bound, reading(convolution(), stranger))).of(CONV) == Exact()
    norms = [named(norm(), weight) for weight in ("one.weight", "other.weight")]
    assert bound.at(SITE, after(bound, reading(*norms))).of(BATCH_NORM) == Exact()
    without_weights = [named(norm(), "") for _ in range(2)]
    assert bound.at(SITE, after(bound, reading(*without_weights))).of(BATCH_NORM) == Exact()


@every_mode
def test_a_norm_that_is_called_twice_has_as_many_readings(bound: AcGc) -> None:
    calls = [named(norm(seed), "norm.weight") for seed in (1, 2)]
    together, apart = after(bound, reading(*calls)), after(bound, *(reading(call) for call in calls))
    assert together == apart
    assert bound.at(SITE, together).of(BATCH_NORM) != Exact()


@every_mode
def test_readings_with_other_channels_do_not_count(bound: AcGc) -> None:
    wide = batch_norm(normal(0, 9, 200), normal(1, 9, 200), 1 + 0.1 * normal(3, 9))  # an instance norm, more examples
    after_both, after_last = after(bound, reading(norm()), reading(wide)), after(bound, reading(wide))
    assert bound.at(SITE, after_both) == bound.at(SITE, after_last)


@pytest.mark.parametrize("bound", [AcGc(1e-4, expected=True), AcGc(1e-4, sound=True)], ids=["expected", "sound"])
def test_a_norm_behind_frozen_layers_is_bounded_by_its_own_gradient(bound: AcGc) -> None:
    flat = norm()
    frozen = flat._replace(reader=dataclasses.replace(flat.reader, in_grad2=0.0))  # nobody asks for gX
    alone = bound.at(SITE, after(bound, reading(frozen))).of(BATCH_NORM)
    both = bound.at(SITE, after(bound, reading(flat))).of(BATCH_NORM)
    assert 0 < both.eps(1.0) <= alone.eps(1.0) < 0.1


@every_mode
def test_a_site_without_readers_keeps_its_bound(bound: AcGc) -> None:
    state = after(bound, reading(convolution()))
    silent = dataclasses.replace(reading(convolution()).sites[0], readers=())
    assert bound.update(state, Reading(2, 1.0, (silent,))) == state
    assert bound.update(state, Reading(2, 1.0, ())) == state


@every_mode
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_overflowed_is_left_out(bound: AcGc, value: float) -> None:
    layer = convolution()
    overflow = layer._replace(reader=dataclasses.replace(layer.reader, out_grad2=value))
    state = after(bound, reading(layer))
    assert bound.update(state, reading(overflow, step=2)) == state


@every_mode
def test_a_layer_without_a_gradient_is_not_exact_for_ever(bound: AcGc) -> None:
    layer = convolution()
    silent = layer._replace(reader=dataclasses.replace(layer.reader, weight_grad2=0.0))
    state = after(bound, reading(layer))
    assert bound.at(SITE, bound.update(state, reading(silent, step=2))).of(CONV) != Exact()
    assert bound.at(SITE, after(bound, reading(silent))).of(CONV) != Exact()


def test_a_loss_scale_cancels() -> None:
    for bound in MODES:
        plain, scaled = (after(bound, reading(convolution(size=size))) for size in (1.0, 1024.0))
        assert bound.at(SITE, plain).of(CONV).eps(1.0) == pytest.approx(bound.at(SITE, scaled).of(CONV).eps(1.0))


@every_mode
def test_an_update_leaves_the_old_state_alone_and_survives_json(bound: AcGc) -> None:
    state = after(bound, reading(convolution()), reading(norm(), path="norm"))
    kept = copy.deepcopy(state)
    again = json.loads(json.dumps(state))
    step = reading(convolution(5), step=5)
    assert bound.update(again, step) == bound.update(state, step)
    assert state == kept
    assert bound.at(("norm", 0), again) == bound.at(("norm", 0), state)


def test_statistics_at_the_first_steps_then_every_hundred() -> None:
    state = AcGc().start()
    due = [step for step in range(1, 401) if not AcGc().wants(step, state).is_empty]
    assert due == [1, 2, 5, 10, 20, 50, 100, 200, 300, 400]
    assert AcGc().wants(100, state).gradients is None
    assert AcGc().wants(100, state).errors == frozenset()
    assert not AcGc(every=7).wants(14, state).is_empty


def test_the_promise_is_what_it_expects_of_the_noise() -> None:
    assert AcGc(e2=0.3).noise({"sites": {}}) == 0.3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"e2": 0}, ["expected e2 to be a positive finite number", "got 0", "AcGc(e2=0.5)"]),
        ({"e2": -1.0}, ["got -1.0"]),
        ({"e2": math.nan}, ["got nan"]),
        ({"e2": math.inf}, ["got inf"]),
        ({"e2": True}, ["got True"]),
        ({"e2": "0.5"}, ["got '0.5'"]),
        ({"every": 0}, ["expected every to be a number of steps from 1", "got 0", "AcGc(every=100)"]),
        ({"every": 1.5}, ["got 1.5"]),
        ({"expected": 1}, ["expected expected=True or expected=False, got 1"]),
        ({"sound": None}, ["expected sound=True or sound=False, got None"]),
        ({"expected": True, "sound": True}, ["got both", "AcGc(expected=True) or AcGc(sound=True)"]),
    ],
)
def test_wrong_arguments(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        AcGc(**options)
    assert all(word in str(caught.value) for word in words)


def test_it_is_a_value() -> None:
    assert AcGc() == AcGc(0.5, 100) != AcGc(0.4)
    assert eval(repr(AcGc(0.2, expected=True))) == AcGc(0.2, expected=True)
