"""Buffers: memory is reused when nobody can see it any more, and not before."""

from __future__ import annotations

import gc
import os
import random
import threading
import timeit
import warnings
from time import thread_time

import numpy as np
import pytest
import torch
from scenes import resident

from slimgrad.report.memory import resident_now
from slimgrad.storage import Arena, Buffers, Heap
from slimgrad.storage.heap import ALIGNMENT, PATIENCE, WARM

MIB = 1 << 20


def fill(tensor: torch.Tensor, value: int) -> torch.Tensor:
    tensor.numpy()[:] = value  # torch's threads would be slow on a busy machine, and gone in a forked child
    return tensor


def holds(tensor: torch.Tensor, value: int) -> bool:
    return bool((tensor.numpy() == value).all())


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4096, 1_000_003])
def test_take_gives_what_was_asked(nbytes: int) -> None:
    buffers = Buffers()
    buffers.take(1)
    taken = buffers.take(nbytes)
    assert taken.dtype == torch.uint8
    assert taken.shape == (nbytes,)
    assert taken.fill_(7).sum() == 7 * nbytes
    assert taken.data_ptr() % ALIGNMENT == 0


def test_a_buffer_serves_as_a_tensor_of_any_dtype() -> None:
    values = Buffers().take(4096).view(torch.float32).view(32, 32)
    values.copy_(torch.eye(32))
    assert torch.equal(values @ values, torch.eye(32))


def test_memory_is_reused_when_the_last_view_is_gone() -> None:
    buffers = Buffers()
    taken = buffers.take(MIB)
    address = taken.data_ptr()
    view = taken.view(torch.float32)[100:].view(-1, 4).t()
    del taken
    assert buffers.take(MIB).data_ptr() != address
    assert buffers.nbytes_live == MIB
    del view
    assert buffers.nbytes_live == 0
    assert buffers.take(MIB).data_ptr() == address


def content(kept) -> bytes:
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.empty(0, dtype=torch.uint8).set_(kept)
    return np.asarray(kept).tobytes()


@pytest.mark.parametrize(
    "keep",
    [
        lambda taken: taken.view(torch.float32)[5:50],
        lambda taken: taken.untyped_storage(),
        lambda taken: taken.numpy()[3:],
        lambda taken: torch.empty(0, dtype=torch.uint8).set_(taken.untyped_storage()),
        lambda taken: memoryview(taken.numpy()),
    ],
    ids=["view", "storage", "numpy", "set_", "memoryview"],
)
def test_what_a_user_got_hold_of_keeps_its_values(keep) -> None:
    buffers = Buffers()
    kept = keep(fill(buffers.take(MIB), 42))
    before = content(kept)
    gc.collect()
    for size in [MIB, 100, 2 * MIB] * 100:
        fill(buffers.take(size), 13)
    assert content(kept) == before
    assert buffers.nbytes_live == MIB


def test_a_tensor_saved_by_a_users_function_keeps_its_values() -> None:
    buffers = Buffers()
    seen = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        values = buffers.take(packed.nbytes).view(packed.dtype).view(packed.shape)
        return values.copy_(packed)

    x = torch.arange(1000.0, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, unpack):
        y = Keeps.apply(x)
    y.sum().backward()
    del y
    for _ in range(100):
        fill(buffers.take(4000), 255)
    assert torch.equal(seen[0], x.detach())


def test_ten_thousand_takes_do_not_grow() -> None:
    buffers = Buffers()
    sizes = random.Random(0)

    def take_some(n: int) -> None:
        held: list[torch.Tensor] = []
        for _ in range(n):
            held.append(fill(buffers.take(sizes.randrange(1, 200_000)), 1))
            if len(held) > 4:
                held.pop(sizes.randrange(5))

    take_some(1000)
    before, at_first = buffers.nbytes_held, resident_now()
    take_some(10_000)
    assert buffers.nbytes_held == before < 4 * MIB
    assert buffers.nbytes_live == 0
    assert at_first is None or resident_now() < at_first + 4 * MIB


def test_a_buffer_takes_no_more_than_was_asked() -> None:
    buffers = Buffers()
    taken = [buffers.take(size * MIB) for size in (50, 25, 12)]
    assert buffers.nbytes_held <= 87 * MIB + 2 * MIB
    taken[1] = torch.empty(0)
    taken.append(buffers.take(20 * MIB))
    assert buffers.nbytes_held <= 87 * MIB + 2 * MIB


@pytest.mark.usefixtures("restless_threads")
def test_threads_take_and_return() -> None:
    buffers = Buffers()
    wrong = []

    def work(value: int) -> None:
        order = random.Random(value)
        held: list[torch.Tensor] = []
        for _ in range(2000):
            held.append(fill(buffers.take(order.randrange(1, 2000)), value))
            if len(held) > 3:
                taken = held.pop(0)
                if not holds(taken, value):
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert buffers.nbytes_live == 0


def test_garbage_collected_in_the_middle_of_take_does_not_lock_up() -> None:
    buffers = Buffers()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list = [buffers.take(1000)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert buffers.nbytes_live == 0


def test_memory_goes_back_to_the_system_on_close() -> None:
    if resident_now() is None:
        pytest.skip("this system does not tell the resident set")
    buffers = Buffers()
    kept = fill(buffers.take(50 * MIB), 3)
    fill(buffers.take(50 * MIB), 1)
    full = resident()
    buffers.close()
    assert holds(kept, 3)
    del kept
    assert resident() < full - 92 * MIB
    assert (buffers.nbytes_live, buffers.nbytes_held) == (0, 0)
    assert int(fill(buffers.take(10), 2).sum()) == 20


def test_what_dies_after_close_is_not_taken_twice() -> None:
    buffers = Buffers()
    kept = fill(buffers.take(MIB), 3)
    buffers.close()
    later = fill(buffers.take(MIB), 4)
    del kept
    assert buffers.nbytes_live == MIB
    fill(buffers.take(MIB), 5)
    assert holds(later, 4)


def test_unused_buffers_are_trimmed() -> None:
    buffers = Buffers()
    kept = fill(buffers.take(MIB), 6)
    fill(buffers.take(50 * MIB), 1)
    for _ in range(2 * PATIENCE):
        buffers.trim()
    assert MIB <= buffers.nbytes_held <= WARM
    assert holds(kept, 6)
    del kept
    for _ in range(2 * PATIENCE):
        buffers.trim()
    assert buffers.nbytes_held == 0


def child_works(buffers: Buffers, arena: Arena, kept: list[torch.Tensor]) -> bool:
    """Write and free; without torch's operators, whose threads did not survive the fork."""
    del kept[1:3]
    taken = [buffers.take(MIB) for _ in range(10)]
    for tensor in [*taken, arena.room(MIB)]:
        fill(tensor, 9)
    return kept[1].numpy()[0] == 3 and buffers.nbytes_live == 12 * MIB and holds(taken[0], 9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_changes_nothing_in_its_parent() -> None:
    heap = Heap()
    buffers, arena = Buffers(heap), Arena(heap)
    kept = [fill(buffers.take(MIB), value) for value in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside torch's threads
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if child_works(buffers, arena, kept) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert all(holds(taken, value) for value, taken in enumerate(kept))
    assert buffers.nbytes_live == 4 * MIB


def test_a_buffer_is_cheap() -> None:
    """Measured: 3.4 times the tensor that every buffer is made of, which takes a microsecond."""
    buffers = Buffers()
    values = np.zeros(10_000, dtype=np.uint8)
    tensor = min(timeit.repeat(lambda: torch.from_numpy(values[64:]), timer=thread_time, number=1000, repeat=40))
    assert min(timeit.repeat(lambda: buffers.take(10_000), timer=thread_time, number=1000, repeat=40)) < 8 * tensor
