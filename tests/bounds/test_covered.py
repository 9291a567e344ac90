"""What a published system covers, and that the rest stays exact."""

import math

import pytest

from slimgrad import Absolute, ConfigError, Exact, Relative
from slimgrad.bounds.base import NormChannels, Reader
from slimgrad.bounds.covered import Covered, PerChannel, check_words, is_finite, word_of
from slimgrad.consumers import BATCH_NORM, CONV, LINEAR, LOG_SOFTMAX
from slimgrad.roles import Need, Role

LAYER_NORM = Role("layer norm input", Need.VALUES)
NORM = NormChannels((1.0,), (1.0,), (1.0,), (1.0,), (1.0,), (1,))


def test_covered_roles_get_the_bound_and_others_exact() -> None:
    covered = Covered(Relative(0.25), ("conv", "norm"))
    roles = (CONV, LINEAR, BATCH_NORM, LAYER_NORM, LOG_SOFTMAX)
    assert [covered.of(role) for role in roles] == [Relative(0.25), Exact(), Relative(0.25), Exact(), Exact()]


def test_a_bound_per_channel_is_as_strict_as_its_strictest_channel() -> None:
    bound = PerChannel((0.5, 0.125, 2.0))
    assert bound.eps(1.0) == 0.125
    assert not bound.needs_rms
    assert Covered(bound, ("norm",)).of(BATCH_NORM) is bound
    assert hash(bound) == hash(PerChannel((0.5, 0.125, 2.0)))


@pytest.mark.parametrize(
    ("reader", "word"),
    [
        (Reader("conv2d"), "conv"),
        (Reader("conv_transpose3d"), "conv"),
        (Reader("linear"), "linear"),
        (Reader("batch_norm", norm=NORM), "norm"),
        (Reader("batch_norm"), None),  # without its channels there is nothing to compute from
        (Reader("layer_norm", norm=NORM), None),
        (Reader("gelu"), None),
    ],
)
def test_words_of_readers(reader: Reader, word: str | None) -> None:
    assert word_of(reader) == word


@pytest.mark.parametrize("words", ["conv", "norm", ("linear",), ("conv", "linear", "norm")])
def test_words_that_there_are(words: object) -> None:
    check_words("Comet", words)


@pytest.mark.parametrize("words", ["relu", "", (), ("conv", "relu"), ["conv"], None, 3, ("conv", 1)])
def test_other_words_are_refused(words: object) -> None:
    with pytest.raises(ConfigError, match=r"expected layers to be some of 'conv', 'linear', 'norm', got .*layers=\("):
        check_words("Comet", words)


def test_absolute_bounds_pass_through() -> None:
    assert Covered(Absolute(0.1), ("conv",)).of(CONV) == Absolute(0.1)


@pytest.mark.parametrize("field", ["out_grad2", "out_grad_peak", "in_grad2", "weight_grad2", "weight_grad_abs"])
def test_an_overflow_in_any_gradient_is_seen(field: str) -> None:
    assert is_finite(Reader("conv2d", **{field: 1.0}))
    assert not any(is_finite(Reader("conv2d", **{field: value})) for value in (math.inf, math.nan))
