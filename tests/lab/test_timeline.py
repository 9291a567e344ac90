"""How a timeline is thinned; what it measures is tested with the training (test_train.py)."""

from slimgrad.lab.timeline import _thinned


def test_a_thinned_curve_keeps_its_peak_and_its_order() -> None:
    samples = [*range(500), 10_000, *range(500, 0, -1)]
    thinned = _thinned(samples, 100)
    assert len(thinned) == 100
    assert max(thinned) == 10_000
    assert thinned.index(10_000) == 50
    assert _thinned([1, 2, 3], 100) == [1, 2, 3]
