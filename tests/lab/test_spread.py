"""What few seeds say."""

import pytest

from slimgrad.lab.spread import Difference, difference, spread


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ by tens of points and the arms by one: unpaired, the interval would hide it."""
    base = {0: 10.0, 1: 50.0, 2: 90.0}
    found = difference({0: 10.9, 1: 51.0, 2: 91.1}, base)
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    half = 4.303 * 0.1 / 3**0.5
    assert (found.low, found.high, found.n) == (pytest.approx(1 - half), pytest.approx(1 + half), 3)


def test_only_shared_seeds_count_and_one_has_no_interval() -> None:
    assert difference({0: 1.0, 7: 9.0}, {0: 3.0, 8: 2.0}) == Difference(-2.0, None, None, 1)
    assert difference({0: 1.0}, {1: 1.0}) is None


def test_many_pairs_have_an_interval_between_those_of_the_table_and_the_normal_one() -> None:
    n = 40
    found = difference({seed: float(seed % 2) for seed in range(n)}, dict.fromkeys(range(n), 0.0))
    assert found is not None and found.high is not None
    assert found.high - found.mean == pytest.approx(2.0227 * (n / (n - 1) * 0.25) ** 0.5 / n**0.5, rel=1e-3)


def test_the_spread_of_one_is_nothing() -> None:
    assert spread([3.0]) == (3.0, 0.0, 1)
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5), 2)
