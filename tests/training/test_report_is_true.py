"""What the report says is held, live tensors and the arena add up to; what it calls original, plain torch holds."""

from __future__ import annotations

import pytest
import small_models
import torch
from scenes import kept_bytes

import slimgrad
from slimgrad.lab import models
from slimgrad.report.memory import LiveBytes

BATCH = 8


def live_after_forward(name, session_of=None):
    """Return bytes that only the graph of one forward keeps alive, and the session; the second step is weighed."""
    model, criterion = small_models.build(name), models.criterion(name)
    inputs, target = small_models.example(name, BATCH)
    session = None if session_of is None else session_of(model, criterion)
    for _ in range(2):  # what is learnt in the first step changes the second
        criterion(model(inputs), target).backward()
    with LiveBytes(owns=None if session is None else session.shelf.arena.owns) as live:
        live.track(*model.parameters(), *model.buffers(), inputs, target, *(p.grad for p in model.parameters()))
        before = live.now
        loss = criterion(model(inputs), target)
        held = live.now - before - loss.untyped_storage().nbytes()
        if session is not None:
            held += session.shelf.arena.nbytes_live
    return held, session, loss


@pytest.mark.parametrize("bound", [slimgrad.Exact(), slimgrad.Relative(0.5)], ids=repr)
@pytest.mark.parametrize("name", models.names())
def test_bytes_held_are_those_reported(name, bound):
    """The ledger counts what pack did; a tracker of live tensors counts what is there."""
    held, session, loss = live_after_forward(name, lambda *parts: slimgrad.attach(*parts, bound=bound, min_bytes=64))
    assert kept_bytes(session) == pytest.approx(held, rel=0.01, abs=2048)
    loss.backward()
    assert session.shelf.arena.nbytes_live == 0
    session.detach()


@pytest.mark.parametrize("name", models.names())
def test_original_bytes_are_those_plain_torch_holds(name):
    held, _, _ = live_after_forward(name)
    _, session, _ = live_after_forward(
        name, lambda *parts: slimgrad.attach(*parts, bound=slimgrad.Exact(), min_bytes=64)
    )
    reported = session.report().to_dict()["last_step"]["saved_in"]
    assert reported == pytest.approx(held, rel=0.01, abs=2048)
    session.detach()


def test_after_warm_up_a_step_needs_no_more_memory():
    """Arena and buffers are as large after thirty steps as after five."""
    model, criterion = small_models.build("resnet50"), models.criterion("resnet50")
    inputs, target = small_models.example("resnet50", BATCH)
    sizes = []
    with slimgrad.attach(model, criterion, bound=slimgrad.Relative(0.25)) as session:
        for _ in range(30):
            criterion(model(inputs), target).backward()
            sizes.append(sum(session.report().storage.values()))
    assert len(set(sizes[5:16])) == 1
    assert max(sizes[5:]) == sizes[5]


def test_the_tracker_sees_what_is_not_reported():
    """The check above is no tautology: a tensor that the graph keeps beside the session shows."""
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18", BATCH)
    with slimgrad.attach(model, bound=slimgrad.Exact()), LiveBytes() as live:
        before = live.now
        y = model(inputs)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            z = y * y
        assert live.now - before > 2 * y.nbytes
        assert z.requires_grad
