"""Under a limit that kills, plain training dies where slim training goes on, to the same losses as without a limit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from slimgrad.errors import ConfigError
from slimgrad.lab import limit
from slimgrad.lab.arms import Setup
from slimgrad.lab.limit import Cage, Outcome, caged, compare, fit, train, trainer

MIB = 1 << 20
STEPS = 2


def deep_net() -> nn.Module:
    """Return a net with many activations and little to compute."""
    blocks = [part for _ in range(40) for part in (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 8, 1), *blocks, nn.AvgPool2d(48), nn.Flatten(), nn.Linear(8, 10))


deep_net.input_shape = (3, 48, 48)  # pyright: ignore[reportFunctionMemberAccess]
SETUP = Setup("test_limit:deep_net", batch=64, threads=1)


@pytest.fixture(autouse=True)
def every_process_knows_the_net(monkeypatch):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.slow
def test_slim_trains_a_batch_that_plain_dies_far_below():
    """Twice the batch here, where torch itself is most of the resident set; bench/limit.py has four times."""
    base = train(replace(SETUP, batch=1), "plain", 1).peak
    cage = Cage(base + 260 * MIB, None)  # plain needs 370 more, slim 120 at twice the batch
    assert train(SETUP, "plain", STEPS, cage).is_killed
    batch = 2 * SETUP.batch
    assert fit(SETUP, "slim", cage).batch >= batch
    limited = train(replace(SETUP, batch=batch), "slim", STEPS, cage)
    assert not limited.is_killed
    step = trainer(replace(SETUP, threads=torch.get_num_threads()), "slim")
    free = [step(batch, number) for number in range(STEPS)]
    assert limited.losses == pytest.approx(free, rel=1e-5)  # the same but for the number of threads


def test_a_limit_is_a_control_group_or_a_watchdog(monkeypatch):
    monkeypatch.setattr(limit, "can_limit_memory", lambda: False)
    with caged(64 * MIB) as cage:
        assert (cage.kind, cage.budget) == ("watchdog on the resident set", str(64 * MIB))
        outcome = train(SETUP, "plain", 1, cage)
        assert outcome.is_killed
        assert outcome.losses == []
        with pytest.raises(ConfigError, match=r"expected fit_batch to live under 64 MiB \(watchdog"):
            fit(SETUP, "plain", cage)
    assert Cage(1, Path("group")).budget == "auto"


def test_what_is_compared(monkeypatch):
    """Plain at the batch it should die at, each arm at the batch that fits it, and slim's batch without a limit."""
    asked = []

    def ran(setup, arm, verb, word, cage):
        asked.append((arm, verb, setup.batch, cage is not None))
        batch = {"plain": 8, "slim": 256}[arm] if verb == "fit" else setup.batch
        return Outcome(arm, batch, False, [1.0], [0.5], [0.25], log=verb if verb == "fit" else "")

    monkeypatch.setattr(limit, "_run", ran)
    monkeypatch.setattr(limit, "can_limit_memory", lambda: False)
    found = compare(SETUP, 100 * MIB, 20)
    trained = [(arm, batch, is_limited) for arm, verb, batch, is_limited in asked if verb == "train"]
    limited = [("plain", 64, True), ("plain", 8, True), ("slim", 256, True)]
    assert trained == [*limited, ("slim", 256, False), ("plain", 256, False)]
    assert found.gain == 4
    assert (found.slim.examples_per_second, found.slim.examples_per_cpu_second) == (512, 1024)
