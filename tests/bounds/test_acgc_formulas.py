"""AC-GC's formulas against layers in numbers: adversaries for what is a bound, random errors for what is expected."""

import math

import pytest
import torch
from published_layers import Layer, batch_norm, conv, linear, normal, uniform, worst

from slimgrad.bounds import acgc_formulas as formulas

E2 = 0.5
ONES = {"dtype": torch.float64}


def layers() -> dict[str, Layer]:
    """Convolutions of all kinds and linear layers; with an even gY the worst case is nearly reached."""
    x, even = normal(0, 4, 3, 8, 8).relu(), torch.ones(4, 1, 8, 8, **ONES)
    return {
        "3x3": conv(x, normal(1, 4, 5, 8, 8), normal(2, 5, 3, 3, 3), padding=1),
        "3x3 even": conv(x, even, normal(2, 1, 3, 3, 3), padding=1),
        "1x1 even": conv(x, even, normal(2, 1, 3, 1, 1)),
        "stride 2 even": conv(x, even[..., ::2, ::2], normal(2, 1, 3, 3, 3), stride=2, padding=1),
        "dilated": conv(x, normal(1, 4, 5, 8, 8), normal(2, 5, 3, 3, 3), padding=2, dilation=2),
        "depthwise": conv(x, normal(1, 4, 3, 8, 8), normal(2, 3, 1, 3, 3), padding=1, groups=3),
        "1-d": conv(normal(0, 4, 3, 20), normal(1, 4, 5, 20), normal(2, 5, 3, 3), padding=1),
        "3-d": conv(normal(0, 2, 3, 5, 5, 5), normal(1, 2, 4, 5, 5, 5), normal(2, 4, 3, 3, 3, 3), padding=1),
        "transposed even": conv(x, torch.ones(4, 1, 16, 16, **ONES), normal(2, 3, 1, 2, 2), transposed=True, stride=2),
        "linear": linear(normal(0, 32, 10), normal(1, 32, 7)),
        "linear even": linear(normal(0, 32, 10), torch.ones(32, 1, **ONES)),
        "linear over a sequence": linear(normal(0, 4, 9, 10), normal(1, 4, 9, 7)),
    }


LAYERS = layers()
every_layer = pytest.mark.parametrize("name", LAYERS)


@every_layer
def test_no_error_within_the_published_bound_exceeds_e2(name: str) -> None:
    layer = LAYERS[name]
    eps = formulas.layer_bound(formulas.published_terms([layer.reader], layer.x.numel()), E2)
    assert worst(layer, eps) <= E2 * (1 + 1e-9)


@pytest.mark.parametrize("name", ["1x1 even", "linear even"])
def test_the_published_bound_is_reached_where_gradients_are_even(name: str) -> None:
    layer = LAYERS[name]
    eps = formulas.layer_bound(formulas.published_terms([layer.reader], layer.x.numel()), E2)
    assert worst(layer, eps) == pytest.approx(E2)


def test_by_hand() -> None:
    """x (1, 1, 2, 2) = 1 2 3 4 and gY = 1 1 1 1 through a 1x1 kernel: gW = 10, so dx^2 = 0.5 * 100 / (4 * 4)."""
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], **ONES)
    layer = conv(x, torch.ones_like(x), torch.ones(1, 1, 1, 1, **ONES))
    assert formulas.published_terms([layer.reader], 4) == {"weight2": 100.0, "out2": 16.0}
    assert formulas.layer_bound(formulas.published_terms([layer.reader], 4), 0.5) == math.sqrt(3.125)
    assert formulas.expected_terms([layer.reader]) == {"weight2": 300.0, "out2": 4.0}


def test_a_stride_that_does_not_divide_the_map_exceeds_the_published_bound_and_not_ours() -> None:
    layer = conv(normal(0, 4, 3, 7, 7), torch.ones(4, 1, 4, 4, **ONES), normal(2, 1, 3, 1, 1), stride=2)
    published, sound = (
        formulas.layer_bound(terms([layer.reader], layer.x.numel()), E2)
        for terms in (formulas.published_terms, formulas.sound_terms)
    )
    assert worst(layer, published) == pytest.approx(E2 * (4 * 4) / 3.5**2)
    assert worst(layer, sound) == pytest.approx(E2)


@every_layer
def test_our_bound_holds_and_costs_little(name: str) -> None:
    """It is coarser where there is padding, which nobody reads, and finer for transposed kernels."""
    layer = LAYERS[name]
    eps = formulas.layer_bound(formulas.sound_terms([layer.reader], layer.x.numel()), E2)
    published = formulas.layer_bound(formulas.published_terms([layer.reader], layer.x.numel()), E2)
    assert worst(layer, eps) <= E2 * (1 + 1e-9)
    assert published / 2 <= eps <= published * 1.5


def test_several_readers_share_the_bound() -> None:
    x = normal(0, 4, 3, 8, 8)
    first = conv(x, normal(1, 4, 5, 8, 8), normal(2, 5, 3, 3, 3), padding=1)
    second = conv(x, 5 * normal(3, 4, 2, 4, 4), normal(4, 2, 3, 1, 1), stride=2)
    eps = formulas.layer_bound(formulas.published_terms([first.reader, second.reader], x.numel()), E2)
    together = Layer(x, first.reader, lambda saved: (_joined(first, second, saved),), first.starts)
    assert worst(together, eps) <= E2


def _joined(first: Layer, second: Layer, saved: torch.Tensor) -> torch.Tensor:
    return torch.cat([layer.gradients(saved)[0].view(-1) for layer in (first, second)])


@every_layer
def test_expected_errors_are_as_expected(name: str) -> None:
    """Random errors reach e2, less what padding takes from a kernel."""
    layer = LAYERS[name]
    eps = formulas.layer_bound(formulas.expected_terms([layer.reader]), E2)
    errors = [layer.error2(uniform(seed, *layer.x.shape) * eps)[0] for seed in range(200)]
    share = sum(errors) / len(errors) / layer.energy()[0] / E2
    low = {"3-d": 0.6, "dilated": 0.55}.get(name, 0.7)
    assert low < share < 1.15


def test_the_worst_case_has_so_many_bits_to_spare() -> None:
    layer = conv(normal(0, 8, 4, 16, 16), normal(1, 8, 6, 16, 16), normal(2, 6, 4, 3, 3), padding=1)
    published = formulas.layer_bound(formulas.published_terms([layer.reader], layer.x.numel()), E2)
    expected = formulas.layer_bound(formulas.expected_terms([layer.reader]), E2)
    assert expected / published == pytest.approx(math.sqrt(3 * 8 * 16 * 16))


def test_floors() -> None:
    layer = conv(normal(0, 1, 1, 4, 4), torch.zeros(1, 1, 4, 4, **ONES), normal(2, 1, 1, 1, 1))
    assert formulas.layer_bound(formulas.published_terms([layer.reader], 16), E2) == pytest.approx(math.sqrt(E2 / 16))
    assert formulas.layer_bound(formulas.sound_terms([layer.reader], 16), E2) == formulas.LARGEST


# ---- batch norm -----------------------------------------------------------------------------------------------------

CHANNELS, VALUES = 8, 512
GAMMA = 1.0 + 0.5 * uniform(9, CHANNELS)


def norms() -> dict[str, Layer]:
    x, gz = normal(0, CHANNELS, VALUES), normal(1, CHANNELS, VALUES)
    one_channel = torch.tensor([1.0, *[1e-3] * (CHANNELS - 1)], **ONES).view(-1, 1)
    cases = {
        "gaussian": (x, gz),
        "far from zero": (x + 3, gz),
        "even": (uniform(2, CHANNELS, VALUES), gz.sign()),
        "sparse gradients": (x, gz * (uniform(3, CHANNELS, VALUES) > 0.9)),
        "two values": (x.sign(), x.sign() + 0.1 * gz),
        "one channel has the gradient": (x, gz * one_channel),
        "heavy tails": (x, gz**5),
    }
    return {name: batch_norm(values, grads, GAMMA) for name, (values, grads) in cases.items()}


NORMS = norms()
every_norm = pytest.mark.parametrize("name", NORMS)


def per_channel(eps: list[float]) -> torch.Tensor:
    return torch.tensor(eps, **ONES).view(-1, 1).expand(CHANNELS, VALUES)


def published_norm(layer: Layer) -> torch.Tensor:
    assert layer.reader.norm is not None
    terms = formulas.published_norm_terms(layer.reader.norm, VALUES, layer.reader.in_grad2)
    return per_channel(formulas.published_norm_bound(terms, E2))


def sound_norm(layer: Layer, e2: float = E2) -> torch.Tensor:
    assert layer.reader.norm is not None
    energies = layer.reader.out_grad2, layer.reader.in_grad2
    return per_channel(formulas.sound_norm_bound(layer.reader.norm, VALUES, *energies, e2))


def test_the_published_norm_by_hand() -> None:
    """One channel: s = 2, gamma = 3, ggamma = 4, nnz = 5, max gZ = 6, max |x| = 7, M = 10, ||gX||^2 = 8."""
    norm = formulas.NormChannels((2.0,), (3.0,), (4.0,), (7.0,), (6.0,), (5,))
    approx = 2**2 * 5**2 * 6**2 * 3.5**2
    terms = formulas.published_norm_terms(norm, 10, 8.0)
    assert terms == {"in2": 80.0, "per_channel": [pytest.approx(3**2 * 2**4 * (approx + 16))]}
    assert formulas.published_norm_bound(terms, 5e4) == [pytest.approx(math.sqrt(1e5 * 80 / terms["per_channel"][0]))]
    assert formulas.published_norm_bound(terms, 1e-9) == [2.0**-8]  # the floor of dx^2 is 2^-16


@pytest.mark.parametrize(
    ("name", "times"), [("even", 4), ("two values", 2.5), ("one channel has the gradient", 10), ("gaussian", 0)]
)
def test_the_published_norm_is_exceeded(name: str, times: float) -> None:
    """By so many times what its own e = 2 e2 allows; on plain noise it holds, with much to spare."""
    layer = NORMS[name]
    share = worst(layer, published_norm(layer), which=1) / (2 * E2)
    assert share > times if times else share < 0.2


def test_the_published_norm_says_nothing_of_gammas_gradient() -> None:
    layer = NORMS["gaussian"]
    assert worst(layer, published_norm(layer), which=0) > 10


@every_norm
@pytest.mark.parametrize("e2", [0.05, 0.5, 4.0])
def test_our_norm_holds(name: str, e2: float) -> None:
    layer = NORMS[name]
    eps = sound_norm(layer, e2)
    assert worst(layer, eps, which=1) <= e2
    assert worst(layer, eps, which=0) <= e2 * (1 + 1e-9)


def test_our_norm_is_tight_for_gammas_gradient_where_gradients_are_even() -> None:
    layer = NORMS["even"]
    assert worst(layer, sound_norm(layer), which=0) == pytest.approx(E2)


def test_our_norm_without_gammas_gradient_is_bounded_by_that_of_its_input() -> None:
    layer = NORMS["even"]
    norm = layer.reader.norm
    assert norm is not None
    without = formulas.NormChannels(
        norm.inv_std, norm.weight, (0.0,) * CHANNELS, norm.peak_input, norm.peak_grad, norm.n_grads
    )
    eps = formulas.sound_norm_bound(without, VALUES, layer.reader.out_grad2, layer.reader.in_grad2, E2)
    assert E2 / 20 < worst(layer, per_channel(eps), which=1) <= E2 * 1.01


def test_a_norm_whose_gradient_is_zero_is_not_bounded() -> None:
    norm = formulas.NormChannels((1.0,), (1.0,), (0.0,), (1.0,), (0.0,), (0,))
    assert formulas.sound_norm_bound(norm, VALUES, 0.0, 0.0, E2) == [formulas.LARGEST]
    assert formulas.expected_norm_rel(formulas.expected_norm_terms(norm, VALUES, 0.0, 0.0), E2) == formulas.LARGEST


@every_norm
def test_expected_errors_of_a_norm_are_as_expected(name: str) -> None:
    """One of the two gradients is off by e2 on average, the other by less."""
    layer = NORMS[name]
    assert layer.reader.norm is not None
    terms = formulas.expected_norm_terms(layer.reader.norm, VALUES, layer.reader.out_grad2, layer.reader.in_grad2)
    rel = formulas.expected_norm_rel(terms, E2)
    eps = per_channel([rel * std for std in terms["stds"]])
    shares = torch.zeros(2, **ONES)
    for seed in range(200):
        shares += torch.tensor(layer.error2(uniform(seed, CHANNELS, VALUES) * eps), **ONES)
    shares /= 200 * torch.tensor(layer.energy(), **ONES) * E2
    assert float(shares.max()) == pytest.approx(1.0, abs=0.25)
