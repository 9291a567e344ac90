"""Comet: its formula against measured gradient errors, its window, its momentum, and its state."""

import copy
import dataclasses
import json
import math

import pytest
import torch
from published_layers import Layer, batch_norm, conv, linear, normal, reading, uniform

from slimgrad import Absolute, ConfigError, Exact, Relative
from slimgrad.bounds.base import Reader, Reading, State
from slimgrad.bounds.comet import Comet, exact_gain, published_gain, spread
from slimgrad.consumers import BATCH_NORM, CONV, LINEAR

SITE = ("layer", 0)


def with_momentum(layer: Layer, momentum: float | None) -> Layer:
    return layer._replace(reader=dataclasses.replace(layer.reader, momentum=momentum))


def convolution(size: float = 1.0, momentum: float | None = 0.5) -> Layer:
    x = normal(0, 8, 4, 10, 10).relu()
    return with_momentum(conv(x, size * normal(1, 8, 6, 10, 10), normal(2, 6, 4, 3, 3), padding=1), momentum)


def eps_of(bound: Comet, state: State, role=CONV) -> float:
    return bound.at(SITE, state).of(role).eps(1.0)


# ---- the formulas against simulated layers --------------------------------------------------------------------------


def simulated(kind: str, channels: int = 16) -> Layer:
    """A convolution over 16 samples of 16 x 16, with output gradients of several kinds."""
    x = normal(0, 16, 4, 16, 16).relu()
    gy = normal(1, 16, channels, 16, 16)
    if kind == "heavy-tailed":
        gy = gy * gy.abs() ** 4
    elif kind == "2 % non-zero":
        gy = gy * (uniform(2, 16, channels, 16, 16) > 0.96)
    elif kind == "one per map":
        peak = torch.zeros(16, channels, 256, dtype=torch.float64)
        at = (uniform(3, 16, channels, 1) * 127 + 128).long()
        gy = peak.scatter(2, at, gy.flatten(2)[..., :1]).view_as(gy)
    return conv(x, gy, normal(2, channels, 4, 3, 3), padding=1)


def measured_sigma(layer: Layer, eps: float) -> float:
    """Return the standard deviation of the weight gradient's error, for errors where the values are not zero."""
    total, count = 0.0, 10
    for seed in range(100, 100 + count):
        d = uniform(seed, *layer.x.shape) * eps * (layer.x != 0)
        total += layer.error2(d)[0] / layer.gradients(layer.x)[0].numel()
    return math.sqrt(total / count)


def density(layer: Layer) -> float:
    return float((layer.x != 0).double().mean())


@pytest.mark.parametrize("kind", ["dense", "heavy-tailed", "2 % non-zero", "one per map"])
def test_the_exact_form_predicts_the_error(kind: str) -> None:
    layer = simulated(kind)
    share = density(layer) * layer.reader.overlap
    predicted = 0.1 * exact_gain(layer.reader.out_grad2, layer.reader.out_channels, share)
    assert measured_sigma(layer, 0.1) == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("heavy-tailed", 0.65, 1.35), ("one per map", 0.65, 1.35), ("2 % non-zero", 1.2, 1.7), ("dense", 6, 9)],
)
def test_where_the_published_fit_is_right_and_where_it_is_off(kind: str, low: float, high: float) -> None:
    """Measured / predicted. Where no value dominates a sample's gradient, the fit sees an error 7 times too small."""
    layer = simulated(kind)
    predicted = 0.1 * published_gain(layer.reader.out_grad_peak, layer.reader.batch, density(layer))
    assert low < measured_sigma(layer, 0.1) / predicted < high


@pytest.mark.parametrize(
    "layer",
    [
        linear(normal(0, 64, 10), normal(1, 64, 7)),
        linear(normal(0, 8, 9, 10), normal(1, 8, 9, 7)),
        conv(normal(0, 8, 4, 30), normal(1, 8, 5, 15), normal(2, 5, 4, 3), stride=2, padding=1),
        conv(normal(0, 8, 4, 8, 8), normal(1, 8, 4, 8, 8), normal(2, 4, 1, 1, 1), groups=4),
        conv(normal(0, 8, 4, 8, 8), normal(1, 8, 5, 16, 16), normal(2, 4, 5, 2, 2), transposed=True, stride=2),
        batch_norm(normal(0, 6, 500) * 3 + 1, normal(1, 6, 500), 1 + 0.1 * normal(3, 6)),
    ],
    ids=["linear", "linear over a sequence", "strided", "depthwise", "transposed", "batch norm"],
)
def test_the_exact_form_predicts_other_layers(layer: Layer) -> None:
    gain = exact_gain(layer.reader.out_grad2, layer.reader.out_channels, layer.reader.overlap) * spread(layer.reader)
    assert measured_sigma(layer, 0.01) == pytest.approx(0.01 * gain, rel=0.12)


def test_by_hand() -> None:
    """sigma = 0.01 * 0.5; a L sqrt(N R) = 0.32 * 2 * sqrt(100 * 0.25) = 3.2."""
    assert published_gain(peak=2.0, batch=100, density=0.25) == pytest.approx(3.2)
    layer = with_momentum(convolution(), 0.5)
    reader = dataclasses.replace(layer.reader, out_grad_peak=2.0, batch=100)
    site = dataclasses.replace(reading(layer).sites[0], density=0.25, readers=(reader,))
    state = Comet().update(Comet().start(), Reading(1, 1.0, (site,)))
    assert eps_of(Comet(), state) == pytest.approx(0.005 / 3.2)


def test_the_error_that_is_allowed_is_the_one_that_is_made() -> None:
    layer = convolution(momentum=0.5)
    bound = Comet(exact=True)
    eps = eps_of(bound, bound.update(bound.start(), reading(layer)))
    assert measured_sigma(layer, eps) == pytest.approx(0.01 * 0.5, rel=0.06)


# ---- what it covers -------------------------------------------------------------------------------------------------


def test_before_the_first_statistics() -> None:
    assert Comet().at(SITE, Comet().start()).of(CONV) == Relative(0.25)
    assert Comet().at(SITE, Comet().start()).of(LINEAR) == Exact()
    paper = Comet(warmup=1000)
    assert paper.at(SITE, paper.start()).of(CONV) == Exact()


def test_layers_that_are_asked_for() -> None:
    every = Comet(layers=("conv", "linear", "norm"))
    layers = {
        "conv": convolution(),
        "linear": with_momentum(linear(normal(0, 64, 10), normal(1, 64, 7)), 0.1),
        "norm": with_momentum(batch_norm(normal(0, 6, 500), normal(1, 6, 500), normal(2, 6)), 0.1),
    }
    state, convs_only = every.start(), Comet().start()
    for path, layer in layers.items():
        state = every.update(state, reading(layer, path=path))
        convs_only = Comet().update(convs_only, reading(layer, path=path))
    bounds = [
        every.at((path, 0), state).of(role) for path, role in (("conv", CONV), ("linear", LINEAR), ("norm", BATCH_NORM))
    ]
    assert all(isinstance(bound, Absolute) for bound in bounds)
    assert list(convs_only["sites"]) == ["conv#0"]


def test_the_strictest_of_several_readers() -> None:
    small, large = convolution(1.0), convolution(5.0)
    both = Comet().update(Comet().start(), reading(small, large))
    alone = Comet().update(Comet().start(), reading(large))
    assert eps_of(Comet(), both) == eps_of(Comet(), alone)


def test_a_tensor_that_somebody_else_reads_as_well_is_exact() -> None:
    stranger = convolution()._replace(reader=Reader("gelu"))
    state = Comet().update(Comet().start(), reading(convolution(), stranger))
    assert Comet().at(SITE, state).of(CONV) == Exact()


# ---- momentum -------------------------------------------------------------------------------------------------------


def test_the_bound_follows_the_momentum() -> None:
    eps = [
        eps_of(Comet(), Comet().update(Comet().start(), reading(convolution(momentum=momentum))))
        for momentum in (0.5, 1.0)
    ]
    assert eps[1] == pytest.approx(2 * eps[0])


def test_a_running_mean_of_gradients_stands_in_for_momentum() -> None:
    state, sizes = Comet().start(), [1.0, 2.0, 4.0]
    for step, size in enumerate(sizes, 1):
        state = Comet().update(state, reading(convolution(size, momentum=None), step=step))
    weights = [0.9**2, 0.9, 1.0]
    mean = sum(w * s for w, s in zip(weights, sizes, strict=True)) / sum(weights)
    layer = convolution(4.0, momentum=convolution(1.0).reader.weight_grad_abs * mean)
    expected = Comet().update(Comet().start(), reading(layer))
    assert eps_of(Comet(), state) == pytest.approx(eps_of(Comet(), expected))


def test_the_loss_scale_is_divided_out() -> None:
    plain = Comet().update(Comet().start(), reading(convolution(1.0)))
    scaled = Comet().update(Comet().start(), reading(convolution(4096.0), scale=4096.0))
    assert eps_of(Comet(), scaled) == pytest.approx(eps_of(Comet(), plain))
    derived = [
        eps_of(Comet(), Comet().update(Comet().start(), reading(convolution(size, None), scale=size)))
        for size in (1.0, 4096.0)
    ]
    assert derived[0] == pytest.approx(derived[1])


@pytest.mark.parametrize("change", [{"momentum": 0.0}, {"out_grad_peak": 0.0}, {"out_grad2": math.inf}])
def test_readings_that_say_nothing_leave_the_bound(change: dict) -> None:
    layer = convolution()
    state = Comet().update(Comet().start(), reading(layer))
    silent = layer._replace(reader=dataclasses.replace(layer.reader, **change))
    assert Comet().update(state, reading(silent, step=2))["sites"] == state["sites"]
    assert Comet().update(Comet().start(), reading(silent))["sites"] == {}


# ---- the window -----------------------------------------------------------------------------------------------------


def due_steps(bound: Comet, sizes: dict[int, float], last: int) -> list[int]:
    """Return when statistics are taken in a run whose gradients have the size given for the latest step before."""
    state, size, due = bound.start(), 1.0, []
    for step in range(1, last + 1):
        size = sizes.get(step, size)
        if not bound.wants(step, state).is_empty:
            due.append(step)
            state = bound.update(state, reading(convolution(size), step=step))
    return due


def test_statistics_at_the_first_steps_then_every_window() -> None:
    assert due_steps(Comet(window=100), {}, 400) == [1, 2, 5, 10, 20, 50, 150, 250, 350]
    assert due_steps(Comet(window=7), {}, 30) == [1, 2, 5, 12, 19, 26]


def test_a_warm_up_ends_in_its_last_step() -> None:
    bound = Comet(window=100, warmup=30)
    assert due_steps(bound, {}, 300) == [30, 130, 230]
    state = bound.update(bound.start(), reading(convolution(), step=30))
    assert isinstance(bound.at(SITE, state).of(CONV), Absolute)


def test_after_a_warm_up_in_which_nothing_was_coded_one_step_is() -> None:
    bound = Comet(window=100, warmup=30)
    state = bound.update(bound.start(), Reading(30, 1.0, ()))
    assert bound.at(SITE, state).of(CONV) == Relative(0.25)
    assert not bound.wants(31, state).is_empty
    state = bound.update(state, reading(convolution(), step=31))
    assert isinstance(bound.at(SITE, state).of(CONV), Absolute)
    assert state["due"] == 131


def test_the_window_is_halved_while_bounds_move_and_whole_again_when_they_settle() -> None:
    moving = {60: 3.0, 160: 9.0}  # threefold between the readings at 50, 150 and 200
    assert due_steps(Comet(window=100), moving, 500) == [1, 2, 5, 10, 20, 50, 150, 200, 225, 325, 425]


def test_a_bound_that_doubles_has_not_moved() -> None:
    assert due_steps(Comet(window=100), {60: 1.99, 160: 1.0}, 400) == [1, 2, 5, 10, 20, 50, 150, 250, 350]


def test_the_window_is_never_shorter_than_ten_steps() -> None:
    bound = Comet(window=40, warmup=1)
    growing = {step: 3.0 ** (step % 7) for step in range(1, 120)}
    gaps = torch.tensor(due_steps(bound, growing, 120)).diff().tolist()
    assert min(gaps) == 10
    assert min(torch.tensor(due_steps(Comet(window=4, warmup=1), growing, 120)).diff().tolist()) == 4


def test_one_layer_that_moves_is_enough() -> None:
    bound = Comet(window=100, warmup=1)
    still, moving = reading(convolution(), path="still").sites[0], reading(convolution(), path="moving").sites[0]
    state = bound.update(bound.start(), Reading(1, 1.0, (still, moving)))
    moved = dataclasses.replace(reading(convolution(3.0)).sites[0], site=moving.site)
    assert bound.update(state, Reading(101, 1.0, (still, moved)))["due"] == 151


# ---- a value with a state beside it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [Comet(), Comet(exact=True), Comet(warmup=3)], ids=repr)
@pytest.mark.parametrize("momentum", [0.5, None])
def test_a_resumed_run_goes_on_as_it_would_have(bound: Comet, momentum: float | None) -> None:
    state = bound.update(bound.start(), reading(convolution(momentum=momentum), step=3))
    kept, again = copy.deepcopy(state), json.loads(json.dumps(state))
    later = reading(convolution(3.0, momentum), step=10)
    assert bound.update(again, later) == bound.update(state, later)
    assert bound.at(SITE, again) == bound.at(SITE, state)
    assert state == kept


def test_nothing_is_promised_of_the_gradients_energy() -> None:
    assert Comet().noise(Comet().start()) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fraction": 0}, ["expected fraction to be a positive finite number", "got 0", "Comet(fraction=0.01)"]),
        ({"fraction": math.nan}, ["got nan"]),
        ({"fraction": "1 %"}, ["got '1 %'"]),
        ({"a": -0.32}, ["expected a to be", "got -0.32", "Comet(a=0.32)"]),
        ({"window": 0}, ["expected window to be a whole number from 1", "got 0", "Comet(window=1000)"]),
        ({"window": 10.0}, ["got 10.0"]),
        ({"warmup": -1}, ["expected warmup to be a whole number from 0", "got -1", "Comet(warmup=1000)"]),
        ({"warmup": True}, ["got True"]),
        ({"exact": 1}, ["expected exact=True or exact=False", "got 1"]),
        ({"layers": "relu"}, ["expected layers to be some of 'conv', 'linear', 'norm'", "got 'relu'", 'layers="conv"']),
    ],
)
def test_wrong_arguments(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Comet(**options)
    assert all(word in str(caught.value) for word in words)


def test_it_is_a_value() -> None:
    assert Comet() == Comet(0.01, 0.32, 1000) != Comet(0.02)
    assert eval(repr(Comet(warmup=1000))) == Comet(warmup=1000)
