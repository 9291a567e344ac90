"""Times of the arms: one per round and arm, ratios within a round."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from slimgrad.lab import steps
from slimgrad.lab.arms import Setup
from slimgrad.lab.steps import Times, seconds_of_step

TINY = Setup("tiny_nets:cnn", batch=2, size=32, threads=1)


def test_a_ratio_is_taken_within_a_round():
    """The machine becomes ten times slower half-way: the medians would say anything, the ratios say 2."""
    times = Times({"plain": [1.0, 1.0, 10.0, 10.0], "slim": [2.0, 2.0, 20.0, 20.0]})
    assert times.ratio("slim") == (2.0, 2.0, 2.0)
    assert times.ratio("plain").median == 1.0


def test_the_spread_is_that_of_the_quartiles():
    times = Times({"plain": [1.0] * 5, "slim": [1.0, 2.0, 3.0, 4.0, 5.0]})
    assert times.ratio("slim") == (3.0, 2.0, 4.0)
    assert times.median("slim") == 3.0


def test_every_arm_is_timed_in_every_round():
    times = steps.measure(TINY, rounds=3, warm_up=1)
    assert {arm: len(seconds) for arm, seconds in times.seconds.items()} == {"plain": 3, "slim": 3, "checkpoint": 3}
    assert all(second > 0 for seconds in times.seconds.values() for second in seconds)


def test_huge_pages_are_measured_in_another_process(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    times = steps.measure_with_huge_pages(TINY, rounds=1)
    assert list(times.seconds) == ["plain", "slim"]
    assert times.ratio("slim").median > 0


def test_a_timed_step_trains():
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds = seconds_of_step(model, nn.CrossEntropyLoss(), optimizer, torch.randn(3, 4), torch.tensor([0, 1, 0]))
    assert seconds > 0
    assert not torch.equal(model.weight, before)
