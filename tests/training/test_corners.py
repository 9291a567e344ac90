"""Corners of ordinary training: computed weights, inputs that change, parts attached one by one, odd dtypes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from scenes import Calls, gradients, kept_bytes, random, relative_error, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)


def normalised_weight():
    return nn.utils.parametrizations.weight_norm(nn.Linear(256, 64))


def low_rank_update():
    base = nn.Parameter(random(64, 256), requires_grad=False)
    a, b = nn.Parameter(random(4, 256, seed=1)), nn.Parameter(random(64, 4, seed=2))
    return Calls(lambda x: F.linear(x, base + b @ a), base=base, a=a, b=b)


def weight_from_another_net():
    maker = nn.Linear(16, 64 * 256)
    return Calls(lambda x: F.linear(x, maker(torch.ones(16)).view(64, 256)), maker=maker)


def constant_weight():
    weight = random(64, 256, grad=False)
    return Calls(lambda x: F.linear(x, weight))


@pytest.mark.parametrize("make", [normalised_weight, low_rank_update, weight_from_another_net, constant_weight])
def test_a_weight_that_is_no_parameter_is_still_a_weight(make):
    """The gradient for the input reads the weight alone: a coarse bound on activations must not show in it."""
    model, x = make(), random(32, 256)
    y = model(x)
    outgoing = torch.ones_like(y)
    plain = torch.autograd.grad(y, x, outgoing)
    with slimgrad.attach(model, bound=COARSE):
        for _ in range(7):
            assert same(list(torch.autograd.grad(model(x), x, outgoing)), list(plain))


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_a_batch_that_is_overwritten_before_backward_is_rejected(bound):
    """Loops that copy the next batch into one tensor: the input is kept by reference, so its change must be seen."""
    model, x = nn.Conv2d(8, 8, 3), random(4, 8, 16, 16, grad=False)
    with slimgrad.attach(model, bound=bound):
        y = model(x)
        x.copy_(random(4, 8, 16, 16, seed=1, grad=False))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_what_passes_between_parts_attached_one_by_one_is_coded():
    """The input of the second part is the first one's result: an activation, not a batch that the caller holds."""
    first, second = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()) for _ in range(2))
    x = random(8, 8, 32, 32, grad=False)
    with slimgrad.attach(first, second, bound=COARSE) as session:
        y = second(first(x))
        assert kept_bytes(session) < 3 * x.nbytes / 4  # two inputs of gelu and the tensor between
        last = session.report().to_dict()["last_step"]
        assert last["saved_in"] >= 3 * x.nbytes
        y.sum().backward()


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_what_passes_between_sessions_is_counted_once_and_never_below_nothing(bound):
    first, second = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(2))
    x = random(8, 8, 32, 32, grad=False)
    with slimgrad.attach(first, bound=bound) as one, slimgrad.attach(second, bound=bound) as other:
        for _ in range(7):
            y = second(first(x)).sum()
            sums = [session.shelf.ledger.snapshot().last for session in (one, other)]
            assert min(coded.n for each in sums for coded in each.coded.values()) >= 0
            assert min(each.coded_in for each in sums) >= 0
            assert sum(each.coded_in for each in sums) == 2 * x.nbytes  # both results of relu
            y.backward()


@dataclass
class Batch:
    x: torch.Tensor


@pytest.mark.parametrize("policy", [slimgrad.Compress(), slimgrad.Swap("disk", min_bytes=0)], ids=repr)
def test_a_batch_cut_out_of_a_data_set_is_kept_by_reference(policy):
    """Hidden in an object of the user's, or under recording(), nobody says that it is an input."""
    data, linear = random(4000, 256, grad=False), nn.Linear(256, 64)
    model = Calls(lambda batch: torch.relu(linear(batch.x)), linear=linear)
    plain = gradients(model(Batch(data[100:164])).square().sum(), model)
    with slimgrad.attach(model, bound=EXACT, policy=policy) as session:
        slim = gradients(model(Batch(data[100:164])).square().sum(), model)
        with session.recording():
            y = model(Batch(data[100:164]))
        assert session.report().to_dict()["last_step"]["saved_in"] == 64 * 64 * 4  # the result of relu
        assert session.kept_bytes() < 64 * 256 * 4
        del y
    assert same(slim, plain)


def test_part_of_an_activation_shares_its_code_also_where_it_is_detached():
    linear = nn.Linear(64, 256)

    def forward(x):
        y = torch.relu(linear(x))
        return (y[:, :64] @ y[:, :64].t()).sum() + (y[:, 64:128] @ y[:, 64:128].detach().t()).sum() + (y @ y.t()).sum()

    model, x = Calls(forward, linear=linear), random(256, 64, grad=False)
    plain = gradients(model(x), model)
    with slimgrad.attach(model, bound=EXACT) as session:
        loss = model(x)
        assert session.kept_bytes() < 256 * 256 * 4  # exactly one storage, of which half are zeros
        assert same(gradients(loss, model), plain)


def test_gradients_switched_on_within_no_grad():
    """A guided sampler: no_grad outside, a gradient for the input inside."""
    inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))

    def guide(x):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            return torch.autograd.grad(inner(x).sum(), x)[0]

    model, x = Calls(guide, inner=inner), random(128, 64, grad=False)
    with torch.no_grad():
        plain = model(x)
        with slimgrad.attach(model, bound=EXACT):
            assert torch.equal(model(x), plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_models_of_every_float_dtype(dtype):
    """Exact is exact in all of them; a bound is met where there is a code, and kept exactly where there is none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)).to(
        dtype
    )
    x = random(4, 3, 32, 32, grad=False).to(dtype)
    plain = gradients(model(x).float().square().sum(), model)
    with slimgrad.attach(model, bound=EXACT) as session:
        assert same(gradients(model(x).float().square().sum(), model), plain)
        assert session.report().saved_ratio > 1.5
    with slimgrad.attach(model, bound=slimgrad.Relative(0.05)):
        assert relative_error(gradients(model(x).float().square().sum(), model), plain) < 0.1


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_nan_and_infinity_go_through(bound):
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), random(4, 3, 32, 32, grad=False)
    x[0, 0, 0], x[1, 0, 5] = float("nan"), float("inf")
    plain = gradients(model(x).sum(), model)
    with slimgrad.attach(model, bound=bound):
        slim = gradients(model(x).sum(), model)
    assert [g.isnan().sum() for g in slim] == [g.isnan().sum() for g in plain]


def test_rules_override_the_bound_by_module_path():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))
    x = random(64, 64)
    plain = gradients(model(x).square().sum(), model)
    with slimgrad.attach(model, bound=COARSE, rules={"*": EXACT}):
        assert same(gradients(model(x).square().sum(), model), plain)
    with slimgrad.attach(model, bound=COARSE, rules={"4": EXACT}):
        slim = gradients(model(x).square().sum(), model)
    assert same(slim[-2:], plain[-2:])  # the last layer's own input is exact, those before it are not
    assert not same(slim[:-2], plain[:-2])


FROZEN = {
    "conv": lambda: nn.Conv2d(8, 8, 3, padding=1),
    "one by one": lambda: nn.Conv2d(8, 8, 1),
    "grouped": lambda: nn.Conv2d(8, 8, 3, groups=8, padding="same"),
    "transposed": lambda: nn.ConvTranspose2d(8, 8, 3, stride=2),
    "reflected": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
}


@pytest.mark.parametrize("shape", [(8, 8, 24, 24), (512, 8, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kind", FROZEN)
def test_a_frozen_convolution_stores_nothing_and_gives_the_same_gradients(kind, layout, shape):
    """Fine-tuning the norms alone: the gradient for the input of a convolution reads its weight, and not the input."""
    if kind == "reflected" and shape[-1] == 1:
        pytest.skip("nothing to reflect")
    conv = FROZEN[kind]().requires_grad_(False).to(memory_format=layout)
    model = Calls(lambda x: conv(x * 1), conv=conv)
    x = random(*shape, grad=False).contiguous(memory_format=layout).requires_grad_()
    plain = gradients(model(x).square().sum(), x)
    twice = torch.autograd.grad(torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0].square().sum(), x)
    with slimgrad.attach(model, bound=EXACT) as session:
        y = model(x)
        assert session.kept_bytes() == 0
        assert same(gradients(y.square().sum(), x), plain)
        first = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0]
        assert same(list(torch.autograd.grad(first.square().sum(), x)), list(twice))
