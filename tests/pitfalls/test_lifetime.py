"""Pitfalls about lifetime: what is kept dies with the graph, hooks end with the forward, threads do not mix."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from pitfalls import naive
from pitfalls.naive import goes_red
from scenes import Calls, gradients, hooks_are_off, random, same
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import slimgrad

EXACT, COARSE = slimgrad.Exact(), slimgrad.Relative(0.5)
SAVES_ITS_RESULT = {"exp": torch.exp, "relu": F.relu, "softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid}


def check_result_is_freed(attach, op, shape, bound, keeps_graph):
    model = Calls(op)
    x = random(*shape)
    with attach(model, bound=bound):
        y = model(x)
        storage = StorageWeakRef(y.untyped_storage())
        if keeps_graph:
            y.sum().backward(retain_graph=True)
        del y
        gc.collect()
        assert storage.expired()


@pytest.mark.parametrize("keeps_graph", [False, True], ids=["never_run", "retain_graph"])
@pytest.mark.parametrize("bound", [EXACT, COARSE], ids=repr)
@pytest.mark.parametrize("shape", [(8, 8), (128, 256)], ids=["small", "large"])
@pytest.mark.parametrize("op", SAVES_ITS_RESULT)
def test_03_no_cycle_through_a_saved_result(op, shape, bound, keeps_graph):
    """A hook that keeps the very tensor it got, when that is the op's own result, closes a cycle that nothing frees."""
    op = SAVES_ITS_RESULT[op]
    check_result_is_freed(slimgrad.attach, op, shape, bound, keeps_graph)
    goes_red(check_result_is_freed, naive.pass_through, op, shape, bound, keeps_graph)


class Interrupted(nn.Module):
    """Raises in the middle of its forward when told to."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.error = None

    def forward(self, x):
        y = F.relu(self.first(x))
        if self.error is not None:
            raise self.error
        return self.second(y)


def check_exception(attach):
    model = Interrupted()
    x = random(32, 64)
    plain = gradients(model(x).sum(), x, model)
    session = attach(model, model.first, bound=EXACT)
    model.error = ValueError("in forward")
    for _ in range(3):
        with pytest.raises(ValueError, match="in forward"):
            model(x)
        assert hooks_are_off()
    model.error = None
    assert same(gradients(model(x).sum(), x, model), plain)
    session.detach()


def test_17_an_exception_in_forward_leaves_no_hooks():
    """Hooks that only a normal return removes stay installed after the first exception, for all later code."""
    check_exception(slimgrad.attach)
    goes_red(check_exception, naive.detached_without_always_call)


def test_17_an_exception_in_recording_leaves_no_hooks():
    """The same for the context."""
    model = Interrupted()
    session = slimgrad.attach(model, bound=EXACT)
    with pytest.raises(ValueError, match="within"), session.recording():
        raise ValueError("within")
    assert hooks_are_off()
    session.detach()


@pytest.mark.parametrize("order", ["before", "after"])
def test_17_an_exception_in_a_pre_hook_of_the_user(order):
    """A pre-hook that raises before ours ran must not make us leave a context that we never entered."""
    model = Interrupted()

    def refuse(module, args):
        raise ValueError("refused")

    if order == "before":
        handle = model.register_forward_pre_hook(refuse)
        session = slimgrad.attach(model, bound=EXACT)
    else:
        session = slimgrad.attach(model, bound=EXACT)
        handle = model.register_forward_pre_hook(refuse)
    x = random(32, 64)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
        with pytest.raises(ValueError, match="refused"):
            model(x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is outer or not hooks_are_off()
    assert hooks_are_off()
    handle.remove()
    plain = gradients(model(x).sum(), x, model)
    session.detach()
    assert same(gradients(model(x).sum(), x, model), plain)


def test_17_an_interrupted_forward_does_not_spoil_the_next():
    """torch calls no forward hooks after KeyboardInterrupt, which is how most forwards in notebooks end."""
    model = Interrupted()
    x = random(32, 64)
    plain = gradients(model(x).sum(), x, model)
    session = slimgrad.attach(model, bound=EXACT)
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    model.error = None
    assert same(gradients(model(x).sum(), x, model), plain)
    assert hooks_are_off()
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    session.detach()
    assert hooks_are_off()


def in_thread(function):
    """Run the function in a new thread and return what it returned, or raise what it raised."""
    box = {}

    def run():
        torch.set_num_threads(1)  # as in the main thread: the number of threads changes the last bits of sums
        try:
            box["result"] = function()
        except BaseException as error:
            box["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if "error" in box:
        raise box["error"]
    return box["result"]


def small_net(seed=0):
    torch.manual_seed(seed)
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.GELU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.LazyLinear(10))


def test_18_forward_and_backward_in_different_threads():
    """The hook stack belongs to a thread; backward may unpack in any."""
    model = small_net()
    x = random(4, 3, 32, 32)
    plain = gradients(model(x).square().sum(), x, model)
    with slimgrad.attach(model, bound=EXACT):
        loss = model(x).square().sum()
        assert same(in_thread(lambda: gradients(loss, x, model)), plain)
        loss = in_thread(lambda: model(x).square().sum())
        assert same(gradients(loss, x, model), plain)
        assert same(in_thread(lambda: gradients(model(x).square().sum(), x, model)), plain)


def test_18_hooks_reach_no_other_thread():
    """While one thread is inside a recorded forward, another thread's tensors are not touched."""
    entered, done = threading.Event(), threading.Event()

    def wait(x):
        entered.set()
        assert done.wait(60)
        return x.exp()

    model = Calls(wait)
    with slimgrad.attach(model, bound=EXACT):
        thread = threading.Thread(target=lambda: model(random(64, 64)))
        thread.start()
        assert entered.wait(60)
        assert hooks_are_off()
        done.set()
        thread.join(60)


def test_18_many_threads_share_one_session():
    """One model, one session, several threads that run forward and backward at once: each gets its own gradients."""
    model = small_net()
    inputs = [random(4, 3, 32, 32, seed=seed) for seed in range(4)]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    model(inputs[0])
    plain = [gradients(model(x).square().sum(), x, model) for x in inputs]
    right = []
    start = threading.Barrier(len(inputs))

    def work(x, expected):
        start.wait(60)
        right.append(all(same(gradients(model(x).square().sum(), x, model), expected) for _ in range(10)))

    with slimgrad.attach(model, bound=EXACT):
        threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, plain, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert right == [True] * len(inputs)


def check_skipped_branch(attach):
    """Tensors of the branch are freed when its output dies, without any backward through it."""
    trunk, used, skipped = nn.Linear(64, 256), nn.Linear(256, 8), nn.Linear(256, 8)
    storages = []

    def forward(x):
        h = F.relu(trunk(x))
        side = torch.tanh(h)
        storages.append(StorageWeakRef(side.untyped_storage()))
        return used(h), skipped(side)

    model = Calls(forward, trunk=trunk, used=used, skipped=skipped)
    x = random(128, 64)
    with attach(model, bound=EXACT):
        for _ in range(3):
            y, side = model(x)
            y.sum().backward()
            del y, side
            gc.collect()
        assert all(storage.expired() for storage in storages)


def test_25_a_skipped_branch_is_freed_with_its_output():
    """A table of packed tensors that only backward empties keeps every branch that backward never visits."""
    check_skipped_branch(slimgrad.attach)
    goes_red(check_skipped_branch, naive.kept_in_a_table)
