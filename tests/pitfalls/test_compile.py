"""Pitfalls about torch.compile: the compiled graph saves its tensors itself, and relies on their exact strides."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import gradients, random, relative_error
from torch import nn

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)
pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 16))
    return model.to(memory_format=torch.channels_last)


def picture():
    return random(4, 3, 16, 16, grad=False).contiguous(memory_format=torch.channels_last).requires_grad_()


def check_compiled(attach, backend, is_attached_first):
    model, x = net(), picture()
    plain = gradients(model(x).square().sum(), x, model)
    if is_attached_first:
        session = attach(model, bound=EXACT)
        compiled = torch.compile(model, backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
        session = attach(compiled, bound=EXACT)
    for _ in range(2):
        assert relative_error(gradients(compiled(x).square().sum(), x, model), plain) < 1e-4
    session.detach()
    assert relative_error(gradients(compiled(x).square().sum(), x, model), plain) < 1e-4


@pytest.mark.parametrize("is_attached_first", [False, True], ids=["compile_then_attach", "attach_then_compile"])
def test_21_a_compiled_model_gives_the_right_gradients(is_attached_first):
    """Hooks around a compiled model run after its whole forward; inside it they break the graph. Either order of
    the two calls must train correctly, and detaching must leave a compiled model that works."""
    check_compiled(slimgrad.attach, "aot_eager", is_attached_first)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler on the path")
def test_21_inductor_gets_its_strides_back():
    """Compiled backward asserts size and stride of every saved tensor: a contiguous copy fails there."""
    check_compiled(slimgrad.attach, "inductor", False)
    goes_red(check_compiled, naive.contiguous, "inductor", False)


def check_parameters_not_coded(attach):
    """The input gradient reads weights and signs only, so a coarse bound must not show in it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x = random(32, 64)
    outgoing = random(32, 64, seed=1, grad=False)
    compiled = torch.compile(model, backend="aot_eager")
    plain = torch.autograd.grad(compiled(x), x, outgoing)
    with attach(compiled, bound=COARSE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        slim = torch.autograd.grad(compiled(x), x, outgoing)
    assert relative_error(list(slim), list(plain)) < 1e-6


def test_22_compiled_graphs_do_not_lose_their_parameters_to_a_codec():
    """Hooks that are traced into the graph with every filter off quantise the parameters too; so do hooks around the
    graph that take whatever comes."""
    check_parameters_not_coded(slimgrad.attach)
    goes_red(check_parameters_not_coded, naive.quantized_whatever_the_size)
