"""`make demo`, in small."""

import pytest

from slimgrad.lab import demo


def test_the_demo_trains_and_shows_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(steps=2, batch=8, rounds=1)
    shown = capsys.readouterr().out
    assert "2 steps of 8 images" in shown
    assert "batch-norm input 1" in shown
    assert "pool indices 1" in shown
    assert "raw" in shown
