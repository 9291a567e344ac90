"""Pitfalls about changes in place: hooks switch off the version check of torch, so slimgrad makes its own."""

from __future__ import annotations

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, random, relative_error, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)
SIZES = {"small": (2, 3, 4, 4), "large": (4, 8, 32, 32)}  # 384 bytes: left as it is; 128 KiB: coded


def exp_result(x, w):
    y = x.exp()
    y.mul_(2)
    return y


def sigmoid_result(x, w):
    y = x.sigmoid()
    y.mul_(0.5)
    return y


def relu_result(x, w):
    y = F.relu(x)
    y.add_(1)
    return y


def relu_twice(x, w):
    y = F.relu(x)
    return y.relu_()


def conv_input(x, w):
    x = x * 1
    y = F.conv2d(x, w)
    x.add_(1)
    return y


def conv_weight(x, w):
    w = w * 1
    y = F.conv2d(x, w)
    w.mul_(2)
    return y


def pool_input(x, w):
    x = x * 1
    y = F.max_pool2d(x, 2)
    x.zero_()
    return y


def a_view_of_it(x, w):
    x = x * 1
    y = F.conv2d(x, w)
    x[0].zero_()
    return y


def through_detach(x, w):
    y = F.conv2d(x * 1, w).exp()
    y.detach().add_(1)
    return y


REJECTED = [exp_result, sigmoid_result, relu_result, relu_twice, conv_input, conv_weight, pool_input, a_view_of_it]
REJECTED += [through_detach]


def check_rejected(attach, change, shape, bound):
    x = random(*shape)
    weight = nn.Parameter(random(5, shape[1], 1, 1, seed=1))
    model = Calls(lambda x: change(x, weight), weight=weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(x).sum().backward()  # plain torch
    with attach(model, bound=bound), pytest.raises(RuntimeError, match=r"(?i)modif.*in.?place|in.?place.*modif"):
        model(x).sum().backward()


def conv_output(x, w):
    return F.conv2d(x, w).add_(1)


def relu_after_norm(x, w):
    return F.relu_(F.batch_norm(F.conv2d(x, w), None, None, training=True))


def other_factor(x, w):
    y = x * 1
    z = y * 3.0  # saves nothing of y
    y.zero_()
    return z


def buffer_reused(x, w):
    y = F.conv2d(x, w)
    z = y.exp()
    y.zero_()
    return z


def saved_again_after_change(x, w):
    y = x * 1
    unused = F.conv2d(y, w)  # saves y, but no gradient comes back this way
    y.add_(1)
    return F.conv2d(y, w) + 0 * unused.detach()


ALLOWED = [conv_output, relu_after_norm, other_factor, buffer_reused, saved_again_after_change]


def check_allowed(attach, change, shape):
    x = random(*shape)
    weight = nn.Parameter(random(5, shape[1], 1, 1, seed=1))
    model = Calls(lambda x: change(x, weight), weight=weight)
    plain = gradients(model(x).square().sum(), x, model)
    with attach(model, bound=EXACT):
        assert same(gradients(model(x).square().sum(), x, model), plain)


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", REJECTED, ids=lambda f: f.__name__)
def test_01_in_place_change_after_saving_is_rejected(change, size, bound):
    """With hooks torch no longer checks versions: a saved tensor that is then changed gives wrong gradients silently.

    What plain torch rejects is rejected here, whether the tensor was kept, coded or dropped."""
    check_rejected(slimgrad.attach, change, SIZES[size], bound)
    goes_red(check_rejected, naive.detached, change, SIZES[size], bound)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", ALLOWED, ids=lambda f: f.__name__)
def test_01_in_place_change_that_torch_allows_gives_the_right_gradient(change, size):
    """The other half of the same row: a change of what backward does not read is no error, and one storage saved in two
    versions is two tensors."""
    check_allowed(slimgrad.attach, change, SIZES[size])
    if change is saved_again_after_change:
        goes_red(check_allowed, naive.keyed_by_pointer, change, SIZES[size])


def check_inputs_untouched(attach):
    x = random(4, 8, 32, 32)
    seen = []
    weight = nn.Parameter(random(8, 8, 3, 3, seed=1))

    def forward(x):
        y = F.conv2d(x, weight, padding=1)
        z = F.relu(F.batch_norm(y, None, None, training=True))
        seen.extend((t, t._version, t.detach().clone()) for t in (x, weight, y, z))
        return F.max_pool2d(F.gelu(F.conv2d(z, weight)), 2)

    model = Calls(forward, weight=weight)
    with attach(model, bound=COARSE):
        model(x).square().sum().backward()
    for tensor, version, values in seen:
        assert tensor._version == version
        assert torch.equal(tensor, values)


def test_02_pack_never_modifies_its_input():
    """torch refuses a pack hook that works in place on what it gets; and the forward still needs those values."""
    check_inputs_untouched(slimgrad.attach)
    goes_red(check_inputs_untouched, naive.rounded_in_place)


class Doubles(torch.autograd.Function):
    """x * x, whose backward works in place on what it saved, and hands that on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.mul_(2).mul_(grad)


POLICIES = [
    slimgrad.Compress(),
    slimgrad.Swap("disk", min_bytes=0),
    slimgrad.Swap("host", min_bytes=0, compress=False),
    slimgrad.Recompute(),
]


@pytest.mark.parametrize(
    "policy", POLICIES, ids=lambda policy: f"{type(policy).__name__} {getattr(policy, 'tier', '')}"
)
def test_01_what_backward_changes_in_place_is_rejected_or_restored_anew_for_the_next_reader(policy):
    """Plain torch refuses: both functions read one tensor. What was decoded for the first is another."""
    linear, x = nn.Linear(64, 64), random(64, 64, grad=False)

    def loss(function):
        y = torch.relu(F.layer_norm(linear(x), (64,)))
        return (function(y) + function(y)).square().sum()

    plain = gradients(loss(torch.square), linear)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss(Doubles.apply).backward()
    model = Calls(lambda: loss(Doubles.apply), linear=linear)
    with slimgrad.attach(model, bound=EXACT, policy=policy, min_bytes=0):
        try:
            slim = gradients(model(), linear)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # noqa: PT017
        else:
            assert relative_error(slim, plain) < 1e-6
