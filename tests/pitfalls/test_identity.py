"""Pitfalls about which saved tensors are one and the same: by storage and version, never by address."""

from __future__ import annotations

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, kept_bytes, random, relative_error, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE, FINE = slimgrad.Exact(), slimgrad.Relative(0.5), slimgrad.Relative(0.01)


def check_no_false_repeats(attach, bound):
    """The original of a coded tensor is freed at once, so the next one of its size gets the same address."""
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    model = nn.Sequential(*layers)
    x = random(4, 8, 24, 24)
    plain = gradients(model(x).square().sum(), x, model)
    with attach(model, bound=bound):
        for _ in range(3):
            slim = gradients(model(x).square().sum(), x, model)
            assert relative_error(slim, plain) < (0.1 if bound is FINE else 1e-12)


@pytest.mark.parametrize("bound", [EXACT, FINE], ids=repr)
def test_09_a_reused_address_is_another_tensor(bound):
    """A third of all saves are repeats and worth sharing; shared by address, freed tensors come back as others."""
    check_no_false_repeats(slimgrad.attach, bound)
    goes_red(check_no_false_repeats, naive.keyed_by_pointer, bound)


def check_repeats_kept_once(attach):
    norm, q, k, v = nn.LayerNorm(256), nn.Linear(256, 64), nn.Linear(256, 64), nn.Linear(256, 64)
    model = Calls(lambda x: [layer(h) for h in [norm(x)] for layer in (q, k, v)], norm=norm, q=q, k=k, v=v)
    x = random(512, 256)
    plain = gradients(sum(y.square().sum() for y in model(x)), x, model)
    session = attach(model, bound=EXACT)
    outputs = model(x)
    assert kept_bytes(session) < 1.2 * x.nbytes  # what the norm returns, once; x itself is held by the caller
    assert same(gradients(sum(y.square().sum() for y in outputs), x, model), plain)
    session.detach()


def test_09_a_tensor_saved_three_times_is_kept_once():
    """The normalised input of q, k and v: plain torch shares it, a copying hook keeps three."""
    check_repeats_kept_once(slimgrad.attach)
    goes_red(check_repeats_kept_once, naive.copied)


def check_views(attach, bound):
    qkv = nn.Linear(64, 192, bias=False)

    def attend(x):
        q, k, v = qkv(x).view(2, 256, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)

    model = Calls(attend, qkv=qkv)
    x = random(2, 256, 64)
    plain = gradients(model(x).square().sum(), x, model)
    session = attach(model, bound=bound)
    y = model(x)
    statistics = 2 * 4 * 256 * 4  # one logarithm of a sum per row
    assert kept_bytes(session) <= 1.02 * (3 * x.nbytes + y.nbytes + statistics)
    assert relative_error(gradients(y.square().sum(), x, model), plain) < (1e-12 if bound is EXACT else 0.5)
    session.detach()


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_10_views_of_one_storage_are_decided_together(bound):
    """q, k and v are views of one storage: to code two of them and leave one keeps all of it, and the codes as well."""
    check_views(slimgrad.attach, bound)
    goes_red(check_views, naive.every_other_copied, bound)


def check_expanded(attach, bound):
    weight = nn.Parameter(random(512, 1024, seed=1))
    model = Calls(lambda x: weight * (x * 2).expand_as(weight), weight=weight)
    x = random(1, 1024)
    plain = gradients(model(x).square().sum(), x, model)
    session = attach(model, bound=bound)
    y = model(x)
    assert kept_bytes(session) <= 2 * x.nbytes
    assert same(gradients(y.square().sum(), x, model), plain)
    session.detach()


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_11_expanded_tensors_do_not_grow(bound):
    """2 MiB of elements over 4 KiB of storage: a codec that takes the view for the data makes memory larger."""
    check_expanded(slimgrad.attach, bound)
    goes_red(check_expanded, naive.contiguous, bound)
