"""Simple modules are taken at their word only while they are as torch made them."""

from __future__ import annotations

import pytest
import torch
from scenes import gradients, random, same
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import slimgrad
from slimgrad import simple


def gated(x):
    return x * x.sigmoid()


def patched_class(model, monkeypatch):
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: F.relu(x) ** 2)


def patched_module(model, monkeypatch):
    model[1].forward = lambda x: F.relu(x) ** 2


def own_hook(model, monkeypatch):
    return model[1].register_forward_pre_hook(lambda module, args: gated(args[0]))


def global_hook_before(model, monkeypatch):
    return register_module_forward_pre_hook(lambda module, args: gated(args[0]) if module is model[1] else None)


def global_hook_after(model, monkeypatch):
    return register_module_forward_hook(lambda module, args, y: gated(y) if module is model[1] else None)


CHANGES = [patched_class, patched_module, own_hook, global_hook_before, global_hook_after]


@pytest.mark.parametrize("is_first", [True, False], ids=["before attach", "after attach"])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_are_exact_whatever_a_simple_module_was_made_to_compute(monkeypatch, change, is_first):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), random(64, 64, grad=False)
    handle = change(model, monkeypatch) if is_first else None
    with slimgrad.attach(model, bound=slimgrad.Exact(), min_bytes=0) as session:
        handle = handle if is_first else change(model, monkeypatch)
        try:
            slim = gradients(model(x).square().sum(), model)
            with session.paused():
                assert same(slim, gradients(model(x).square().sum(), model))
        finally:
            if handle is not None:
                handle.remove()


def test_only_global_hooks_of_others_are_minded():
    module = nn.ReLU()
    with slimgrad.attach(nn.Linear(1, 1)), slimgrad.attach(nn.Linear(1, 1)):
        assert simple.is_simple(module)
        handle = register_module_forward_pre_hook(lambda module, args: None)
        assert not simple.is_simple(module)
        handle.remove()
        assert simple.is_simple(module)
    assert simple.is_simple(module)


def test_a_subclass_is_not_simple():
    assert not simple.is_simple(type("Mine", (nn.ReLU,), {})())


def test_the_call_is_that_of_the_forward():
    linear, x = nn.Linear(8, 8), torch.ones(2, 8)
    call = simple.call_of(linear, (x,))
    assert call is not None
    assert call.function is F.linear
    assert call.args[0] is x
    assert call.args[1] is linear.weight
    assert simple.call_of(linear, (x, x)) is None
