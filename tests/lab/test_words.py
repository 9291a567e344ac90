"""Bounds and policies as people type them."""

import pytest

import slimgrad
from slimgrad import ConfigError
from slimgrad.bounds.noise import Noise
from slimgrad.lab import words
from slimgrad.lab.words import BOUND_GRAMMAR, POLICY_GRAMMAR, bound_of, policy_of


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("exact", slimgrad.Exact()),
        ("relative:0.5", slimgrad.Relative(0.5)),
        ("absolute:1e-3", slimgrad.Absolute(1e-3)),
        ("noise", Noise(0.05)),
        ("noise:0.1", Noise(0.1)),
        ("comet", slimgrad.Comet()),
        ("comet:0.02", slimgrad.Comet(0.02)),
        ("acgc:0.25", slimgrad.AcGc(0.25)),
    ],
)
def test_bounds_are_words(text: str, bound: object) -> None:
    assert bound_of(text) == bound


@pytest.mark.parametrize("text", ["", "relative", "relative:", "exact:1", "absolute:much", "loose:3", "0.05"])
def test_what_is_no_bound_is_answered_with_the_grammar(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        bound_of(text)
    assert BOUND_GRAMMAR in str(error.value)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["relative:-1", "noise:0", "noise:nan"])
def test_a_number_that_no_bound_can_be_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        bound_of(text)


def test_policies_are_words() -> None:
    assert policy_of("compress") == slimgrad.Compress()
    assert policy_of("compress:zvc") == slimgrad.Compress("zvc")


@pytest.mark.parametrize("text", ["", "squeeze", "recompute:3", "budget", "budget:", "compress:", "swap:"])
def test_what_is_no_policy_is_answered_with_the_grammar(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy_of(text)
    assert POLICY_GRAMMAR in str(error.value)


def test_a_policy_that_is_not_built_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(words.POLICIES, "teleport", ("Teleport", "may"))
    with pytest.raises(ConfigError, match=r"is built \(compress.*got 'teleport:mars', which is not built yet"):
        policy_of("teleport:mars")
