"""Bounds that stay as they are."""

import dataclasses

import pytest

from slimgrad import Absolute, ConfigError, Exact, Relative
from slimgrad.roles import EXACT


@pytest.mark.parametrize(
    ("bound", "rms", "eps"), [(Exact(), 2.0, 0.0), (Absolute(0.5), 2.0, 0.5), (Relative(0.25), 2.0, 0.5)]
)
def test_eps(bound, rms: float, eps: float) -> None:
    assert bound.eps(rms) == eps


def test_only_a_relative_bound_asks_for_the_rms() -> None:
    assert [bound.needs_rms for bound in (Exact(), Absolute(1.0), Relative(1.0))] == [False, False, True]


@pytest.mark.parametrize("bound", [Absolute, Relative])
@pytest.mark.parametrize("wrong", [0, 0.0, -1.0, float("nan"), float("inf"), None, "0.1", [0.1]])
def test_what_is_not_a_positive_number_is_refused(bound, wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"{bound.__name__} expected a positive finite number"):
        bound(wrong)


def test_bounds_are_values() -> None:
    assert Absolute(0.1) == Absolute(0.1) != Absolute(0.2)
    assert len({Exact(), Exact(), Relative(0.1), Relative(0.1)}) == 2
    assert eval(repr(Relative(0.25))) == Relative(0.25)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Absolute(0.1).value = 1.0  # pyright: ignore


@pytest.mark.parametrize("bound", [Absolute(0.5), Relative(0.5)])
def test_a_role_that_amplifies_errors_gets_a_smaller_bound(bound) -> None:
    assert bound.of(dataclasses.replace(EXACT, scale=1.0, absolute=0.0)) == bound
    assert bound.of(dataclasses.replace(EXACT, scale=0.25, absolute=0.0)).eps(1.0) == 0.125


def test_a_role_with_a_known_scale_makes_a_relative_bound_absolute() -> None:
    role = dataclasses.replace(EXACT, absolute=0.5)
    assert Relative(0.5).of(role) == Absolute(0.25)
    assert Absolute(0.5).of(dataclasses.replace(role, scale=1.0)) == Absolute(0.5)


def test_exact_is_exact_for_every_role() -> None:
    assert Exact().of(dataclasses.replace(EXACT, scale=0.25, absolute=0.5)) == Exact()
