"""Pitfalls about values: what comes back in backward is what went in, or an error says why not."""

from __future__ import annotations

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, kept_bytes, random, relative_error, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)


def linear(x, w):
    return F.linear(x.flatten(1), w)


def convolution(x, w):
    return F.conv2d(x, w.view(64, -1, 1, 1)[:, : x.shape[1]])


def transposed_product(x, w):
    return torch.mm(x.flatten(1), w.t())


def check_parameters_exact(attach, layer, is_frozen):
    """A linear layer's input gradient reads the weight alone, so any error in it is an error of the weight."""
    x = random(8, 4, 16, 16)
    weight = nn.Parameter(random(64, 1024, seed=1), requires_grad=not is_frozen)
    model = Calls(lambda x: layer(x, weight), weight=weight)
    plain = gradients(model(x).square().sum(), x)
    outgoing = model(x).detach()
    with attach(model, bound=COARSE):
        y = model(x)
        assert torch.equal(y.detach(), outgoing)
        assert same(list(torch.autograd.grad(y, x, 2 * outgoing)), plain)


@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("layer", [linear, transposed_product, convolution], ids=lambda f: f.__name__)
def test_04_parameters_and_their_views_are_never_coded(layer, is_frozen):
    """Linear saves weight.t(), a view that is no Parameter: an isinstance filter codes (or ships) all such weights."""
    check_parameters_exact(slimgrad.attach, layer, is_frozen)
    goes_red(check_parameters_exact, naive.lossy_unless_parameter_class, layer, is_frozen)


def check_autocast_weights(attach):
    x = random(8, 1024)
    weight = nn.Parameter(random(256, 1024, seed=1))
    model = Calls(lambda x: F.linear(x, weight), weight=weight)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        return y, torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)

    _, plain = run()
    session = attach(model, bound=COARSE)
    y, slim = run()
    assert same(list(slim), list(plain))
    assert kept_bytes(session) < weight.numel() / 4  # plain torch keeps 2 bytes per weight for the copy
    with torch.no_grad():
        weight.mul_(-1)
    try:
        late = torch.autograd.grad(y, x, torch.ones_like(y))
    except RuntimeError:
        pass  # refused: the copy cannot be rebuilt any more
    else:
        assert same(list(late), list(plain))
    session.detach()


def test_07_autocast_copies_of_weights_are_rebuilt_exactly():
    """Under autocast the 16-bit weight copies are saved like activations. They are rebuilt from the parameter, unless
    it has changed since: then the old gradient or an error, never a gradient of the new weights."""
    check_autocast_weights(slimgrad.attach)
    goes_red(check_autocast_weights, naive.copied)
    goes_red(check_autocast_weights, naive.lossy_unless_parameter_class)


def check_hooks_ignore_autocast(attach):
    x = random(256, 256)
    model = Calls(lambda x: F.relu(torch.sin(x)) * torch.sigmoid(x))
    with attach(model, bound=COARSE):
        outside = gradients(model(x).sum(), x)
        with torch.autocast("cpu", torch.bfloat16):
            inside = gradients(model(x).sum(), x)
    assert same(inside, outside)


def test_07_hooks_compute_without_autocast():
    """A hook called from an op that autocast leaves alone runs with autocast on: its arithmetic would be in 16 bits."""
    check_hooks_ignore_autocast(slimgrad.attach)
    goes_red(check_hooks_ignore_autocast, naive.through_matmul)


def check_random_state(attach):
    torch.manual_seed(7)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.GELU()]
    model = nn.Sequential(*layers)
    x = random(4, 3, 32, 32)

    def run():
        torch.manual_seed(11)
        loss = model(x).square().sum()
        after_forward = torch.get_rng_state()
        loss.backward()
        return loss.detach(), after_forward, torch.get_rng_state()

    plain = run()
    with attach(model, bound=COARSE):
        slim = run()
    assert all(torch.equal(a, b) for a, b in zip(slim, plain, strict=True))


def test_08_the_global_random_state_is_left_alone():
    """Random rounding from the global generator would change every later dropout mask."""
    check_random_state(slimgrad.attach)
    goes_red(check_random_state, naive.stochastic_from_global_generator)


def check_retained(attach, bound):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.GELU())
    x = random(4, 3, 32, 32)
    with attach(model, bound=bound):
        y = model(x)
        results = [torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)[0] for _ in range(3)]
        saved = [y.grad_fn._saved_self for _ in range(2)]
        results.append(torch.autograd.grad(y, x, torch.ones_like(y))[0])
    assert same([*results[1:], saved[0]], [*results[:-1], saved[1]])


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_14_unpack_can_be_repeated(bound):
    """retain_graph and reading grad_fn._saved_* unpack again: nothing may be used up by the first time."""
    check_retained(slimgrad.attach, bound)
    goes_red(check_retained, naive.consumed_on_first_use, bound)


def check_double_backward(attach, is_inside):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(1024, 8)
    )
    x = random(4, 2, 20, 20)

    def penalty():
        (g,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return gradients(g.square().sum(), x, model)

    plain = penalty()
    with attach(model, bound=EXACT) as session:
        if is_inside:
            with session.recording():
                slim = penalty()
        else:
            slim = penalty()
    assert same(slim, plain)


@pytest.mark.parametrize("is_inside", [False, True], ids=["backward_outside", "backward_recorded"])
def test_15_double_backward_is_exact(is_inside):
    """autograd re-attaches history to whatever unpack returns, so second derivatives work if unpack is pure."""
    check_double_backward(slimgrad.attach, is_inside)
    goes_red(check_double_backward, naive.consumed_on_first_use, is_inside)


def test_15_second_derivatives_agree_with_finite_differences():
    """gradgradcheck in double precision through attached modules."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    x = torch.randn(4, 5, dtype=torch.double, requires_grad=True)
    with slimgrad.attach(model, bound=EXACT, min_bytes=0):
        assert torch.autograd.gradgradcheck(model, x)


def check_attention(attach, bound):
    q, k, v = (random(1, 2, 256, 64, seed=seed) for seed in range(3))
    sharp = 2.83  # logits q.k / sqrt(64) of deviation 8

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q * sharp, k * sharp, v)

    model = Calls(attend)
    outgoing = random(1, 2, 256, 64, seed=4, grad=False)
    plain = torch.autograd.grad(model(q, k, v), (q, k, v), outgoing)
    with attach(model, bound=bound):
        slim = torch.autograd.grad(model(q, k, v), (q, k, v), outgoing)
    assert relative_error(list(slim), list(plain)) < 0.5


def test_30_attention_stays_stable_under_a_coarse_bound():
    """Backward computes exp(q.k - lse): coarse q and k beside an exact lse explode when attention is sharp."""
    check_attention(slimgrad.attach, COARSE)
    goes_red(check_attention, naive.lossy_unless_parameter_class, COARSE)
