"""A finer code of what was coded: how much finer, how large, and when there is none."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.finer import FINER, Finer
from slimgrad.measure import Meter

BOUND = slimgrad.Relative(0.5)


@pytest.fixture
def noted(monkeypatch):
    """Return what a session stores, with the tensors, of all that it codes."""
    seen = []
    monkeypatch.setattr(Meter, "note", lambda self, stored, tensor, bound: seen.append((stored, tensor)))
    monkeypatch.setattr(Meter, "watch", lambda self, result: None)
    return seen


def run(layer: nn.Module, x: torch.Tensor, bound=BOUND):
    torch.manual_seed(0)
    session = slimgrad.attach(layer, bound=bound, min_bytes=64)
    session.tuning.meter.is_on = True
    return session, layer(x * torch.ones((), requires_grad=True))


@pytest.mark.parametrize(
    ("layer", "size"),
    [(lambda: nn.Conv2d(4, 4, 3), (8, 4, 16, 16)), (lambda: nn.BatchNorm2d(4), (8, 4, 16, 16)), (nn.GELU, (64, 64))],
    ids=["conv", "centred by channel", "gelu"],
)
@pytest.mark.parametrize("bound", [BOUND, slimgrad.Absolute(0.25)], ids=["relative", "absolute"])
def test_its_error_is_smaller_by_its_factor(noted, layer, size, bound):
    torch.manual_seed(0)
    session, result = run(layer(), torch.randn(*size), bound)
    with session:
        ((stored, tensor),) = noted
        finer, tensor = Finer.of(stored, tensor), tensor.detach()
        error = (finer.values().view(-1) - tensor.reshape(-1)).abs().max()
        step = 2.0 * stored.values.plan.bound.eps(float(tensor.square().mean().sqrt()))
        assert 0.0 < error <= step / 2.0 / FINER * 1.01
        del result  # before the session ends


def test_it_goes_with_what_holds_it(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(8, 4, 16, 16))
    with session:
        ((stored, tensor),) = noted
        used = stored.shelf.arena.nbytes_live
        finer = Finer.of(stored, tensor)
        assert stored.shelf.arena.nbytes_live > used
        del finer
        gc.collect()
        assert stored.shelf.arena.nbytes_live == used
        del result


def test_values_that_no_code_makes_small_have_none(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(8, 4, 16, 16))
    with session:
        ((stored, tensor),) = noted
        assert Finer.of(stored, torch.full_like(tensor, torch.nan)) is None
        del result
