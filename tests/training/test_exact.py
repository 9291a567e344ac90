"""With Exact() the gradients of every model are those of plain torch, bit for bit, and memory falls all the same."""

from __future__ import annotations

import contextlib
import copy

import pytest
import small_models
import torch
from scenes import AUTOCASTS, gradients, same, train_step
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad
from slimgrad.lab import models

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@contextlib.contextmanager
def kernels_for(name, precision):
    """oneDNN has no 16-bit LSTM for processors without AVX-512; without oneDNN torch runs it step by step."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and (name, precision) != ("lstm", "bfloat16"))
    yield
    torch._C._set_mkldnn_enabled(before)


def in_layout(model, inputs, layout):
    if layout == "channels_last" and inputs.dim() in CHANNELS_LAST:
        layout = CHANNELS_LAST[inputs.dim()]
        return model.to(memory_format=layout), inputs.contiguous(memory_format=layout)
    return model, inputs


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("precision", AUTOCASTS)
@pytest.mark.parametrize("name", models.names())
def test_gradients_are_bit_identical(name, precision, layout):
    """Three steps, so that whatever is learnt from the first is used in the next; every tensor is large enough."""
    inputs, target = small_models.example(name)
    plain, inputs = in_layout(small_models.build(name), inputs, layout)
    if inputs.is_floating_point():
        inputs.requires_grad_()
    slim, criterion = copy.deepcopy(plain), models.criterion(name)
    with kernels_for(name, precision):
        expected = [train_step(plain, criterion, inputs, target, precision, seed) for seed in range(3)]
        with slimgrad.attach(slim, criterion, bound=slimgrad.Exact(), min_bytes=64):
            for seed in range(3):
                assert same(train_step(slim, criterion, inputs, target, precision, seed), expected[seed])


@pytest.mark.parametrize("name", models.names())
def test_a_bound_does_change_gradients(name):
    """The same comparison sees a difference when there is one."""
    inputs, target = small_models.example(name)
    plain, criterion = small_models.build(name), models.criterion(name)
    slim = copy.deepcopy(plain)
    expected = train_step(plain, criterion, inputs, target)
    with slimgrad.attach(slim, criterion, bound=slimgrad.Relative(0.5), min_bytes=64):
        got = train_step(slim, criterion, inputs, target)
    assert same(got[:1], expected[:1])  # forward is untouched
    is_one_fused_function = name == "lstm"  # whose tensors nobody else knows how to read: not recognised, so exact
    assert same(got, expected) == is_one_fused_function


@pytest.mark.parametrize("name", models.names())
def test_eval_mode_and_accumulated_gradients(name):
    """Batch norm in eval mode saves other things; and .grad adds up over several backwards as it does without us."""
    inputs, target = small_models.example(name)
    plain, criterion = small_models.build(name).eval(), models.criterion(name)
    slim = copy.deepcopy(plain)
    with slimgrad.attach(slim, criterion, bound=slimgrad.Exact(), min_bytes=64):
        for model in (plain, slim):
            for _ in range(2):
                criterion(model(inputs), target).backward()
    assert same([p.grad for p in slim.parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.parametrize("name", ["vit", "resnet18", "unet2d"])
def test_gradient_penalty_is_bit_identical(name):
    """The gradient for the input is part of the loss: backward within the step, then backward through it."""
    inputs, target = small_models.example(name)
    inputs.requires_grad_()
    plain, criterion = small_models.build(name), models.criterion(name)
    slim = copy.deepcopy(plain)

    def step(model):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the fused one has no derivative
            loss = criterion(model(inputs), target)
            (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
            return gradients(loss + slope.square().sum(), inputs, model)

    with slimgrad.attach(slim, criterion, bound=slimgrad.Exact(), min_bytes=64):
        assert same(step(slim), step(plain))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet", "gpt"])
def test_retained_graphs_give_the_same_gradients_again(name):
    inputs, target = small_models.example(name)
    model, criterion = small_models.build(name), models.criterion(name)
    torch.manual_seed(1)
    plain = gradients(criterion(model(inputs), target), model)
    with slimgrad.attach(model, criterion, bound=slimgrad.Exact(), min_bytes=64):
        torch.manual_seed(1)
        loss = criterion(model(inputs), target)
        leaves = list(model.parameters())
        for keeps in (True, True, False):
            assert same(list(torch.autograd.grad(loss, leaves, retain_graph=keeps)), plain)


def checkpointed(model: nn.Module, use_reentrant: bool) -> nn.Module:
    """Make every segment of the model recompute itself in backward."""
    for segment in model.segments():
        forward = segment.forward

        def recomputed(x, forward=forward):
            return checkpoint(forward, x, use_reentrant=use_reentrant)

        segment.forward = recomputed
    return model


@pytest.mark.filterwarnings("ignore:.*checkpoint")
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not_reentrant"])
@pytest.mark.parametrize("name", ["resnet50", "gpt", "vit", "unet2d"])
def test_checkpointed_blocks_are_bit_identical(name, use_reentrant, where):
    """Attached around the whole model, or to the parts that the recomputation runs."""
    inputs, target = small_models.example(name)
    if inputs.is_floating_point():
        inputs.requires_grad_()  # reentrant checkpointing needs an input with a gradient
    plain = checkpointed(small_models.build(name), use_reentrant)
    slim = checkpointed(small_models.build(name), use_reentrant)
    criterion = models.criterion(name)

    def step(model):
        torch.manual_seed(1)
        model.zero_grad()
        criterion(model(inputs), target).backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = [step(plain), step(plain)]
    parts = [slim] if where == "outside" else [leaf for leaf in slim.modules() if not list(leaf.children())]
    with slimgrad.attach(*parts, bound=slimgrad.Exact(), min_bytes=64):
        assert same(step(slim), expected[0])
        assert same(step(slim), expected[1])


@pytest.mark.parametrize(("name", "at_least"), [("resnet50", 1.2), ("vgg16", 1.8)])
def test_exact_still_saves_memory(name, at_least):
    """Lossless codes and sharing alone: zeros, masks, pool indices, and nothing kept for its shape."""
    model = models.build(name, width=0.25, classes=10)
    inputs, target = models.example(name, batch=2, size=64)
    criterion = models.criterion(name)
    with slimgrad.attach(model, criterion, bound=slimgrad.Exact()) as session:
        criterion(model(inputs), target).backward()
        assert session.report().saved_ratio >= at_least


def test_lossless_codes_are_used_in_every_step():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    ratios = []
    with slimgrad.attach(model, bound=slimgrad.Exact()) as session:
        for _ in range(3):
            model(torch.randn(4, 3, 32, 32)).sum().backward()
            ratios.append(session.report().to_dict()["last_step"]["saved_ratio"])
    assert min(ratios) > 1.2
