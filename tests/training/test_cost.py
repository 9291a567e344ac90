"""What one more saved tensor costs in Python, counted and not timed: calls, and tensors that are made on the way.

A count is the same on every machine. The limits are what is needed now; bench/overhead.py has the times.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad import kernels, shelf

N = 20
MAKE_TENSORS = {"as_strided", "detach", "empty", "empty_strided", "from_numpy", "view", "__getitem__", "set_"}
SOURCES = str(Path(slimgrad.__file__).parent)


class Chain(nn.Module):
    """Applies a function n times; each call saves one tensor."""

    def __init__(self, function):
        super().__init__()
        self.function, self.n = function, N

    def forward(self, x):
        for _ in range(self.n):
            x = self.function(x)
        return x


@pytest.fixture(autouse=True)
def no_samples(monkeypatch):
    """One tensor in many has its error measured; that one is left out."""
    monkeypatch.setattr(shelf, "SAMPLE_EVERY", 1 << 60)


def count_calls(run):
    """Return calls of slimgrad's Python, and calls that make a tensor, while `run` runs."""
    counts = Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            counts["python"] += 1
        elif event == "c_call" and argument.__name__ in MAKE_TENSORS:
            counts["tensors"] += 1

    sys.setprofile(note)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    return counts, result


def cost_per_tensor(function, n_values):
    """Return what one more save adds in forward, and its read in backward, once the session knows the sites."""
    model, totals = Chain(function), {}
    x = torch.randn(n_values, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with slimgrad.attach(model, bound=slimgrad.Relative(0.5)):
        for model.n in (N, 2 * N):
            for _ in range(3):
                model(x).sum().backward()
            forward, loss = count_calls(lambda: model(x).sum())
            backward, _ = count_calls(loss.backward)
            totals[model.n] = forward, backward
    return [
        {kind: (totals[2 * N][part][kind] - totals[N][part][kind]) / N for kind in ("python", "tensors")}
        for part in (0, 1)
    ]


def test_a_tensor_left_alone_takes_one_call_each_way():
    pack, unpack = cost_per_tensor(torch.sin, 16)
    assert pack == {"python": 1, "tensors": 1}, "pack, and the detached tensor that autograd keeps"
    assert unpack == {"python": 1, "tensors": 0}


@pytest.mark.skipif(kernels.active() is kernels.reference, reason="coders are for the compiled kernels")
@pytest.mark.parametrize(("n_values", "n_reads"), [(2048, 10), (16384, 19)], ids=["small", "pooled"])
def test_a_coded_tensor_takes_few_calls_and_makes_two_tensors(n_values, n_reads):
    pack, unpack = cost_per_tensor(nn.functional.gelu, n_values)
    assert pack["python"] <= 31
    assert pack["tensors"] == 1, "the guard of its version"
    assert unpack["python"] <= n_reads
    assert unpack["tensors"] == 1, "what backward reads"
