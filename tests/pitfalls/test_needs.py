"""Pitfalls about what backward needs of a tensor: often a sign, a shape or two values, sometimes every bit."""

from __future__ import annotations

import time

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, kept_bytes, random, relative_error, same
from torch import nn
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)
NOTHING = 2048  # bytes: headers and the like


def check_functional_first_step(attach):
    weights = [nn.Parameter(random(16, 16, 3, 3, seed=i) / 12) for i in range(4)]

    def forward(x):
        for weight in weights:
            x = F.relu(F.conv2d(x, weight, padding=1))
        return F.adaptive_avg_pool2d(x, 1)

    model = Calls(forward, **{f"w{i}": weight for i, weight in enumerate(weights)})
    x = random(8, 16, 32, 32)
    session = attach(model, bound=COARSE)
    y = model(x)
    assert kept_bytes(session) < 4 * x.nbytes / 8  # four results of relu, at eight to one or better
    y.sum().backward()
    session.detach()


def test_26_functional_code_is_recognised_on_the_first_step():
    """pack is not told who saves a tensor: a library that learns it from the first backward saves nothing before."""
    check_functional_first_step(slimgrad.attach)
    goes_red(check_functional_first_step, naive.detached)


def check_batch_norm(attach):
    """Data of deviation 1000, bound 0.5: the input hardly suffers, but 1 / deviation would be rounded to 0."""
    torch.manual_seed(2)
    plain_norm, slim_norm = nn.BatchNorm2d(1024), nn.BatchNorm2d(1024)
    x = (random(4, 1024, 6, 6) * 1000).detach().requires_grad_()
    outgoing = random(4, 1024, 6, 6, seed=1, grad=False)
    plain = torch.autograd.grad(plain_norm(x), [x, *plain_norm.parameters()], outgoing)
    with attach(slim_norm, bound=slimgrad.Absolute(0.5)):
        slim = torch.autograd.grad(slim_norm(x), [x, *slim_norm.parameters()], outgoing)
    assert relative_error(list(slim), list(plain)) < 0.01
    assert same(list(slim_norm.buffers()), list(plain_norm.buffers()))
    assert slim_norm.num_batches_tracked == 1


def test_27_statistics_of_batch_norm_stay_exact():
    """Mean and inverse deviation are saved beside the input, 4 KiB each; running statistics are updated once."""
    check_batch_norm(slimgrad.attach)
    goes_red(check_batch_norm, naive.lossy_unless_parameter_class)


POOLS = {
    "2x2": lambda x: F.max_pool2d(x, 2),
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "dilated": lambda x: F.max_pool2d(x, 3, 1, dilation=2),
    "uneven": lambda x: F.max_pool2d(x, (2, 5), (3, 1), (1, 2)),
    "large": lambda x: F.max_pool2d(x, 20),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (5, 7)),
    "fractional": lambda x: F.fractional_max_pool2d(x, 3, 8, _random_samples=torch.full((*x.shape[:2], 2), 0.3)),
    "1d": lambda x: F.max_pool1d(x.flatten(2), 4),
    "3d": lambda x: F.max_pool3d(x.unflatten(1, (4, 4)), 2),
    "with indices": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
}


def check_pool(attach, pool, channels_last, special):
    x = random(4, 16, 40, 40, grad=False)
    if special:
        x[0, 0, :20] = float("-inf")
        x[1, :, ::3] = float("nan")
        x[2] = 0.0
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    model = Calls(lambda x: pool(x * 1))
    y = model(x)
    outgoing = random(*y.shape, seed=1, grad=False)
    plain = torch.autograd.grad(y, x, outgoing)
    for bound in (EXACT, COARSE):
        with attach(model, bound=bound):
            assert same(list(torch.autograd.grad(model(x), x, outgoing)), list(plain))


@pytest.mark.parametrize("special", [False, True], ids=["finite", "nan_inf_ties"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("pool", POOLS)
def test_28_max_pool_of_every_kind_is_exact(pool, channels_last, special):
    """Window offsets are few bits, but only if window, stride, padding, dilation and ties are all understood."""
    if "max_pool3d" in POOLS[pool].__code__.co_names and channels_last:
        channels_last = False  # unflatten of a channels_last tensor has no such layout
    check_pool(slimgrad.attach, POOLS[pool], channels_last, special)


def check_pool_memory(attach):
    x = random(8, 16, 64, 64)
    model = Calls(lambda x: F.max_pool2d(x * 1, 2))
    session = attach(model, bound=EXACT)
    y = model(x)
    indices = y.numel() / 2  # four bits would do; torch keeps eight bytes, and the whole input for its shape
    assert kept_bytes(session) <= indices + NOTHING
    y.sum().backward()
    session.detach()


def test_28_max_pool_keeps_few_bits_and_no_input():
    """The input is read for its shape alone, and an index needs as many bits as its window has places."""
    check_pool_memory(slimgrad.attach)
    goes_red(check_pool_memory, naive.detached)


DROPOUTS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "half": lambda x: F.dropout(x, 0.5),
    "in place": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "nothing": lambda x: F.dropout(x, 0.0),
    "everything": lambda x: F.dropout(x, 1.0),
    "channels": lambda x: F.dropout2d(x, 0.3),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "feature alpha": lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
}


def check_dropout(attach, dropout, bound):
    x = random(8, 16, 32, 32)
    model = Calls(lambda x: dropout(x * 1))
    torch.manual_seed(3)
    plain = gradients(model(x).sum(), x)
    torch.manual_seed(3)
    session = attach(model, bound=bound)
    y = model(x)
    kept = kept_bytes(session)
    assert same(gradients(y.sum(), x), plain)
    session.detach()
    return kept


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_29_dropout_masks_are_exact(dropout, bound):
    """A mask has two values, 0 and 1 / (1 - p), also where it is broadcast or scaled."""
    check_dropout(slimgrad.attach, DROPOUTS[dropout], bound)


def test_29_a_dropout_mask_is_one_bit():
    """On the CPU torch keeps a float per element."""

    def check(attach):
        assert check_dropout(attach, DROPOUTS["dropout"], EXACT) <= 8 * 16 * 32 * 32 / 8 * 1.05 + NOTHING

    check(slimgrad.attach)
    goes_red(check, naive.detached)


def check_cross_entropy(attach, bound):
    head, loss = nn.Linear(32, 2000), nn.CrossEntropyLoss()
    x, target = random(256, 32), torch.arange(256)
    plain = gradients(loss(head(x), target), x, head)
    session = attach(head, loss, bound=bound)
    value = loss(head(x), target)
    assert kept_bytes(session) <= 1.02 * 256 * 2000 * 4 + NOTHING
    assert relative_error(gradients(value, x, head), plain) <= (0 if bound is EXACT else 0.2)
    session.detach()


@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
def test_31_cross_entropy_keeps_one_of_its_two_tensors(bound):
    """log_softmax saves its result, nll_loss saves the same for its shape: the largest tensors of a language model."""
    check_cross_entropy(slimgrad.attach, bound)
    goes_red(check_cross_entropy, naive.copied, bound)


def seconds_per_save(*attaches, n_saves=300, rounds=60):
    """Return the shortest processor time per saved tensor under each, by turns: a busy machine takes no part in it."""
    x = random(16)
    models = [Calls(lambda x: [x := torch.sin(x) for _ in range(n_saves)][-1]) for _ in attaches]
    sessions = [attach(model, bound=COARSE) for attach, model in zip(attaches, models, strict=True)]
    best = [float("inf")] * len(models)
    for _ in range(rounds):
        for i, model in enumerate(models):
            start = time.thread_time()
            model(x).sum().backward()
            best[i] = min(best[i], (time.thread_time() - start) / n_saves)
    for session in sessions:
        session.detach()
    return best


def check_overhead(attach):
    nothing, identity, hooked = seconds_per_save(naive.no_hooks, naive.detached, attach)
    assert hooked - nothing <= 3 * (identity - nothing) + 3e-6


def test_32_small_tensors_cost_little():
    """Hooks cost microseconds per saved tensor: what is too small to code must leave early. bench/overhead.py has the
    figure; this only sees that the early way out is there, with room for a busy machine."""
    check_overhead(slimgrad.attach)
    goes_red(check_overhead, naive.quantized_whatever_the_size)
