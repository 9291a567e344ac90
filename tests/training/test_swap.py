"""Swap in training: the same gradients bit for bit as without, wherever the bytes are, and memory that falls."""

from __future__ import annotations

import os

import pytest
import torch
from scenes import resident, same
from small_models import build, example
from torch import nn

import slimgrad
from slimgrad import Absolute, ChangedInPlace, Comet, Compress, Exact, Noise, Relative, Swap
from slimgrad.lab import models

MIB = 1 << 20
BOUNDS = [Exact(), Relative(0.5), Absolute(0.1), Noise(0.05), slimgrad.AcGc(), Comet(window=1)]
WAYS = [{}, {"overlap": True}, {"fraction": 0.5}, {"tier": "host", "overlap": True}]


def train(name: str, n: int, bound, policy=None, **options) -> list[torch.Tensor]:
    """Return the gradients of n steps of SGD, all in a row; without a policy, those of plain torch."""
    model, (x, y) = build(name), example(name)
    criterion = models.criterion(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    session = (
        None
        if policy is None
        else slimgrad.attach(
            model, criterion, bound=bound, policy=policy, optimizer=optimizer, min_bytes=256, **options
        )
    )
    found: list[torch.Tensor] = []
    torch.manual_seed(0)
    for _ in range(n):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        if session is not None:
            session.shelf.tiers.worker.drain()  # so that backward finds nothing in memory
        loss.backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
    if session is not None:
        assert getattr(policy, "tier", "") != "disk" or session.shelf.tiers.disk().n_loaded > n
        session.detach()
    return found


def to_disk(directory, **options) -> Swap:
    return Swap(**{"tier": "disk", "directory": directory, "min_bytes": 256, **options})


@pytest.mark.parametrize("bound", BOUNDS, ids=repr)
@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_gradients_are_those_of_the_in_memory_policy(name, bound, tmp_path):
    expected = train(name, 3, bound, Compress(derive=False))
    for way in WAYS:
        assert same(train(name, 3, bound, to_disk(tmp_path, **way)), expected), way
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tier", ["disk", "host"])
@pytest.mark.parametrize("name", ["resnet18", "unet3d", "gpt", "lstm"])
def test_without_compression_gradients_are_exact(name, tier, tmp_path):
    swap = to_disk(tmp_path, tier=tier, compress=False)
    assert same(train(name, 3, Relative(0.5), swap), train(name, 3, None))


def test_rules_hold(tmp_path):
    rules = {"stem.*": Exact(), "blocks.0.*": Relative(0.05)}
    expected = train("resnet18", 2, Relative(0.5), Compress(), rules=rules)
    assert same(train("resnet18", 2, Relative(0.5), to_disk(tmp_path), rules=rules), expected)


class Stack(nn.Sequential):
    """Twelve maps of 8 MiB that backward needs."""

    def __init__(self) -> None:
        super().__init__(*(nn.Tanh() for _ in range(12)))


@pytest.mark.parametrize("compress", [True, False])
def test_resident_memory_falls(tmp_path, compress):
    model, x = Stack(), torch.randn(1 << 21, requires_grad=True)
    model(x).sum().backward()
    with slimgrad.attach(model, bound=Exact(), policy=Swap("disk", compress, tmp_path)) as session:
        for _ in range(2):
            x.grad = None
            before = resident()
            loss = model(x).sum()
            session.shelf.tiers.worker.drain()
            held = resident() - before
            loss.backward()
        assert held < 24 * MIB, "of 96"
        report = session.report()
    assert 96 * MIB <= report.storage["on disk at most"] < 120 * MIB
    assert "on disk" in str(report)


def test_the_arena_and_the_disk_are_empty_after_backward(tmp_path):
    model, (x, y) = build("resnet18"), example("resnet18")
    with slimgrad.attach(model, bound=Relative(0.5), policy=to_disk(tmp_path), min_bytes=256) as session:
        for _ in range(2):
            nn.functional.cross_entropy(model(x), y).backward()
            session.shelf.tiers.worker.drain()
            assert session.shelf.arena.nbytes_live == 0
            assert session.shelf.tiers.disk().disk.nbytes_live == 0


def test_reads_are_ahead_of_backward(tmp_path):
    model, x = Stack(), torch.randn(1 << 19, requires_grad=True)
    with slimgrad.attach(model, bound=Exact(), policy=Swap("disk", False, tmp_path)) as session:
        tier = session.shelf.tiers.disk()
        for _ in range(3):
            loss = model(x).sum()
            tier.worker.drain()
            tier.n_ahead = 0
            loss.backward()
    assert tier.n_ahead >= 8, "of twelve, the first of which nobody could foresee"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("compress", [False, True])
def test_changes_in_place_are_found(tmp_path, compress, overlap):
    x = torch.randn(1 << 16, requires_grad=True)
    model = nn.Tanh()
    with slimgrad.attach(model, bound=Relative(0.5), policy=to_disk(tmp_path, compress=compress, overlap=overlap)):
        y = model(x)
        y.add_(1)
        with pytest.raises(ChangedInPlace):
            y.sum().backward()


def test_originals_wait_in_bounded_number(tmp_path, monkeypatch):
    model, x = Stack(), torch.randn(1 << 18, requires_grad=True)
    policy = Swap("disk", True, tmp_path, min_bytes=0, overlap=True)
    with slimgrad.attach(model, bound=Relative(0.5), policy=policy) as session:
        worker, most = session.shelf.tiers.worker, 0
        worker.capacity = 3 * MIB
        submit = worker.submit

        def watched(*job):
            nonlocal most
            done = submit(*job)
            most = max(most, worker.nbytes_waiting)
            return done

        monkeypatch.setattr(worker, "submit", watched)
        model(x).sum().backward()
    assert 0 < most <= 3 * MIB


ODD_WAYS = [Compress(), Swap("disk", min_bytes=0), Swap("disk", min_bytes=0, compress=False), Swap("host", min_bytes=0)]
ODD_WAYS += [Swap("disk", min_bytes=0, overlap=True), Swap("host", min_bytes=0, compress=False)]


@pytest.mark.parametrize("bound", [Exact(), Relative(0.01)], ids=repr)
@pytest.mark.parametrize("policy", ODD_WAYS, ids=repr)
def test_a_storage_may_have_a_tail_that_is_no_whole_value(policy, bound):
    """Bytes that were read from a file, viewed as numbers: 131,077 of them are 32,769 floats and one byte."""
    memory = torch.zeros(131_077, dtype=torch.uint8)
    x = memory[:131_076].view(torch.float32).view(3, -1)
    x.copy_(torch.randn_like(x))
    model = nn.Linear(10_923, 4)
    (plain,) = torch.autograd.grad(model(x).square().sum(), model.weight)
    with slimgrad.attach(model, bound=bound, policy=policy) as session:
        for _ in range(2):
            with session.recording():
                y = model(x).square().sum()
            (slim,) = torch.autograd.grad(y, model.weight)
    assert torch.allclose(slim, plain, rtol=0, atol=0.05 * float(plain.abs().max()))
