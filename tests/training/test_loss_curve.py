"""Training under a bound reaches the loss that plain training reaches, and the check that says so can fail."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import slimgrad
from slimgrad.lab import data

STEPS, BATCH, TAIL = 80, 32, 20


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10),
    )  # fmt: skip


def final_loss(bound=None):
    """Return the mean training loss of the last steps."""
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = contextlib.nullcontext() if bound is None else slimgrad.attach(model, bound=bound, min_bytes=1024)
    losses = []
    torch.manual_seed(1)
    with session:
        for x, y in data.batches(data.fashion_mnist(), BATCH, STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses[-TAIL:]) / TAIL


@pytest.fixture(scope="module")
def plain_loss():
    loss = final_loss()
    assert loss < 0.9  # it learns: ten classes begin at 2.3
    return loss


def check_close(bound, plain_loss):
    assert final_loss(bound) <= 1.1 * plain_loss


def test_exact_is_the_same_run(plain_loss):
    assert final_loss(slimgrad.Exact()) == plain_loss


@pytest.mark.parametrize("bound", [slimgrad.Relative(0.25), slimgrad.Absolute(0.05)], ids=repr)
def test_a_bound_trains_as_well(bound, plain_loss):
    check_close(bound, plain_loss)


def test_a_ruinous_bound_fails_the_same_check(plain_loss):
    """A step of a hundred times the data's own size must not pass for training."""
    with pytest.raises(AssertionError):
        check_close(slimgrad.Relative(50.0), plain_loss)
