"""Nothing leaks: after hundreds of steps of every unhappy kind, memory is what it was."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from pitfalls import naive
from scenes import random, resident
from torch import nn
from torch.nn import functional as F

import slimgrad

WARM_UP, STEPS = 40, 200
SLACK = 12 << 20  # bytes of resident set that allocators may move; one leaked branch per step would be 25 times that


class Unhappy(nn.Module):
    """Three branches of about a megabyte each; the kind of step says what goes wrong."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.used = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.Conv2d(32, 8, 1))
        self.skipped = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Sigmoid(), nn.Conv2d(32, 8, 1))

    def forward(self, x, kind):
        h = self.trunk(x)
        side = self.skipped(h)
        if kind == "raises in forward":
            raise ValueError(kind)
        return self.used(h), side


class RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("raises in backward")


def step(model, x, kind):
    expected = ValueError if kind.startswith("raises") else ()
    raised = ""
    try:  # not pytest.raises, whose record of the exception is a reference cycle around the whole graph
        y, side = model(x, kind)
        y = RaisesInBackward.apply(y) if kind == "raises in backward" else y
        if kind == "both branches":
            y = y + F.relu(side)
        if kind != "no backward":
            y.square().sum().backward(retain_graph=kind == "retained")
    except expected as error:
        raised = str(error)
    assert raised == (kind if expected else "")
    model.zero_grad()


KINDS = ["skipped branch", "raises in forward", "raises in backward", "no backward", "retained", "both branches"]


def living():
    """Return how many objects of slimgrad are alive, by type."""
    gc.collect()
    types = (type(thing) for thing in gc.get_objects())
    return Counter(kind for kind in types if str(kind.__module__).startswith("slimgrad"))


def check_no_leak(attach, bound):
    model, x = Unhappy(), random(8, 3, 64, 64, grad=False)
    session = attach(model, bound=bound)
    for i in range(WARM_UP):
        step(model, x, KINDS[i % len(KINDS)])
    alive, nbytes = living(), resident()
    for i in range(STEPS):
        step(model, x, KINDS[i % len(KINDS)])
    assert living() - alive == Counter()
    grown = resident() - nbytes
    assert grown < SLACK, f"the resident set grew by {grown} bytes"
    session.detach()


@pytest.mark.parametrize("bound", [slimgrad.Exact(), slimgrad.Relative(0.25)], ids=repr)
def test_unhappy_steps_leave_nothing_behind(bound):
    """Skipped branches, exceptions in forward and backward, losses never run backward, graphs retained and dropped."""
    check_no_leak(slimgrad.attach, bound)


def test_the_leak_test_sees_a_leak():
    naive.goes_red(check_no_leak, naive.kept_in_a_table, slimgrad.Exact(), match="the resident set grew")


def test_memory_goes_back_to_the_system_when_the_session_ends():
    """Arena and decode buffers are the session's: detach() ends them, once no graph needs them any more."""
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    model, x = nn.Sequential(*layers), random(16, 16, 128, 128, grad=False)
    model(x).sum().backward()  # whatever torch keeps for itself
    model.zero_grad()
    before = resident()
    session = slimgrad.attach(model, bound=slimgrad.Relative(0.01))
    for _ in range(3):
        model(x).sum().backward()
    assert sum(session.report().storage.values()) > 0
    session.detach()
    model.zero_grad()
    assert resident() - before < SLACK
