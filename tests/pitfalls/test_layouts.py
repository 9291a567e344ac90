"""Pitfalls about what the user sees of a saved tensor: its layout, its dtype, and that it stays as it is."""

from __future__ import annotations

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, random, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)


class Keeps(torch.autograd.Function):
    """Saves whatever tensors it is given; backward shows them to `look`."""

    @staticmethod
    def forward(ctx, x, look, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.look = look
        ctx.attribute = x.detach()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.look(ctx.saved_tensors, ctx.attribute)
        ctx.look(ctx.saved_tensors, ctx.attribute)
        return grad * 2, None, *(None for _ in ctx.saved_tensors)


LAYOUTS = {
    "channels_last": lambda: random(4, 16, 24, 24, grad=False).contiguous(memory_format=torch.channels_last),
    "channels_last_3d": lambda: random(2, 4, 8, 8, 8, grad=False).contiguous(memory_format=torch.channels_last_3d),
    "transposed": lambda: random(96, 128, grad=False).t(),
    "permuted": lambda: random(8, 16, 4, 32, grad=False).permute(2, 0, 3, 1),
    "every_other_column": lambda: random(64, 256, grad=False)[:, ::2],
    "inner_window": lambda: random(64, 256, grad=False)[3:60, 5:200],
    "offset": lambda: random(70000, grad=False)[1:],
    "expanded": lambda: random(1, 4096, grad=False).expand(8, -1),
    "overlapping": lambda: random(9000, grad=False).unfold(0, 16, 2),
    "single_rows": lambda: random(4096, 1, grad=False).as_strided((4096, 1), (1, 7)),
}


def check_layout(attach, make):
    original = make()
    seen = []
    model = Calls(lambda x: Keeps.apply(x, lambda tensors, _: seen.append(tensors[0]), original))
    with attach(model, bound=EXACT):
        model(random(3)).sum().backward()
    assert len(seen) == 2
    for restored in seen:
        assert restored.shape == original.shape
        assert restored.stride() == original.stride()
        assert torch.equal(restored, original)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_12_strides_come_back_exactly(layout):
    """A contiguous copy has the right values but loses the fast layout, and breaks code that relies on strides."""
    check_layout(slimgrad.attach, LAYOUTS[layout])
    if layout not in ("offset", "single_rows"):  # contiguous already
        goes_red(check_layout, naive.contiguous, LAYOUTS[layout])


def test_12_channels_last_convolution_reads_channels_last_again():
    """The same through a coded convolution input: its gradient has the layout that plain torch gives it."""

    def check(attach):
        x = random(4, 16, 24, 24, grad=False).contiguous(memory_format=torch.channels_last).requires_grad_()
        conv = nn.Conv2d(16, 16, 3).to(memory_format=torch.channels_last)
        model = nn.Sequential(nn.ReLU(), conv, nn.ReLU())
        plain = gradients(model(x).sum(), x, model)
        with attach(model, bound=EXACT):
            assert same(gradients(model(x).sum(), x, model), plain)

    check(slimgrad.attach)


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64]
DTYPES += [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint64, torch.bool]


def check_custom_function(attach, dtype):
    original = (random(128, 128, grad=False) * 3).to(dtype)
    x = random(64, 64)
    seen = []

    def look(tensors, attribute):
        seen.append((tensors[0], attribute))

    model = Calls(lambda x: F.relu(Keeps.apply(F.relu(x), look, original.clone())))
    with attach(model, bound=COARSE):
        model(x).sum().backward()
        for _ in range(3):  # later steps must not write into what backward handed out
            model(x).sum().backward()
    assert len(seen) == 8
    for restored, attribute in seen:
        assert restored.dtype == dtype
        assert torch.equal(restored.view(torch.uint8), original.view(torch.uint8))
        assert torch.equal(attribute, F.relu(x.detach()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_13_custom_function_gets_its_tensors_back(dtype):
    """A custom Function may save any dtype, read it twice, and keep it: unknown means exact, whatever the bound."""
    check_custom_function(slimgrad.attach, dtype)
    if dtype.is_floating_point and dtype.itemsize > 1:
        goes_red(check_custom_function, naive.lossy_unless_parameter_class, dtype)


def check_kept_by_the_user(attach):
    stash = []
    model = Calls(lambda x, seed: Keeps.apply(x, lambda tensors, _: stash.append(tensors[0]), x * 1))
    with attach(model, bound=EXACT):
        for seed in range(4):
            model(random(128, 128, seed=seed), seed).sum().backward()
    for i, tensor in enumerate(stash):
        assert torch.equal(tensor, random(128, 128, seed=i // 2, grad=False))


def test_13_what_a_custom_function_keeps_is_not_overwritten():
    """Decode buffers that are reused while someone still holds the decoded tensor change it under their hands."""
    check_kept_by_the_user(slimgrad.attach)
    goes_red(check_kept_by_the_user, naive.decoded_into_one_buffer)
