"""Layers of a step: FLOP and bytes as one can count them by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimgrad.planner.fake_run import Workload, predict
from slimgrad.planner.op_trace import OpTrace, Work


def traced(net, example, batch: int) -> OpTrace:
    trace = OpTrace()
    predict(Workload(net, example), batch, watch=lambda: trace)
    return trace


def test_layers_are_counted():
    def net() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Flatten(),
            nn.Linear(8 * 256, 10),
        )

    trace = traced(net, lambda n: (torch.randn(n, 3, 16, 16), torch.randint(10, (n,))), 4)
    first, relu, second = trace.layers[:3]
    assert [layer.nbytes for layer in (first, relu, second)] == [4 * 3 * 256 * 4, 4 * 8 * 256 * 4, 4 * 8 * 256 * 4]
    assert [layer.is_sparse for layer in (first, relu, second)] == [False, True, False]
    assert all(layer.is_values for layer in (first, relu, second))
    conv = 2 * 4 * 256 * 8 * 3 * 9
    assert sum(flop for flop, _ in relu.forward.operators) == conv  # the first convolution ends in the relu's result
    assert sum(flop for flop, _ in first.backward.operators) == conv  # only the weight's gradient
    assert sum(flop for flop, _ in relu.backward.operators) == 2 * (conv / 3 * 8)


def test_time_is_the_longer_of_arithmetic_and_memory():
    work = Work([(100.0, 10), (1.0, 1000)])
    assert work.seconds(flops=10.0, bandwidth=100.0) == pytest.approx(10.0 + 10.0)
