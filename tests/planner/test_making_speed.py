"""A probe says what making results again costs, and changes nothing."""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from slimgrad.planner.making_speed import making_bandwidth


def test_it_is_measured_once_and_leaves_the_random_state_alone(monkeypatch):
    making_bandwidth.cache_clear()
    state = torch.get_rng_state()
    found = making_bandwidth()
    assert 1e6 < found < 1e12
    assert making_bandwidth() == found
    assert torch.equal(torch.get_rng_state(), state)
    relu = functional.relu
    monkeypatch.setattr(functional, "relu", lambda x: time.sleep(0.1) or relu(x))
    making_bandwidth.cache_clear()
    assert making_bandwidth() < 2 * (1 << 20) / 0.1
    making_bandwidth.cache_clear()
