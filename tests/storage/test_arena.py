"""Arena: slots own their bytes; any order of release, any thread, any exception leaves nothing behind."""

from __future__ import annotations

import copy
import gc
import os
import random
import subprocess
import sys
import threading
import timeit
import warnings
from time import thread_time

import numpy as np
import pytest
import torch

from slimgrad.errors import InternalError
from slimgrad.report.memory import resident_now
from slimgrad.storage import Arena, Heap, Slot
from slimgrad.storage.heap import ALIGNMENT

MIB = 1 << 20
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def put(arena: Arena, used: int, worst: int | None = None, value: int = 1) -> Slot:
    """Write `used` bytes of that value into room for `worst`."""
    room = arena.room(used if worst is None else worst)
    room.numpy()[:used] = value
    return arena.keep(room, used)


def holds(slot: Slot, value: int) -> bool:
    return bool((slot.payload.numpy() == value).all())


def test_a_slot_holds_its_bytes() -> None:
    arena = Arena()
    slot = put(arena, 1000, 5000, value=7)
    assert slot.payload.dtype == torch.uint8
    assert slot.payload.shape == (1000,)
    assert slot.nbytes == arena.nbytes_live == 1000
    assert holds(slot, 7)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 100_001])
def test_room_is_aligned_and_large_enough(nbytes: int) -> None:
    arena = Arena()
    put(arena, 13)
    room = arena.room(nbytes)
    assert room.numel() >= nbytes
    assert room.data_ptr() % ALIGNMENT == 0
    assert arena.keep(room, nbytes).nbytes == nbytes


def test_a_view_of_the_first_bytes_can_be_kept() -> None:
    arena = Arena()
    payload = arena.room(5000)[:1000].fill_(3)
    slot = arena.keep(payload, 1000)
    put(arena, 4000, value=9)
    assert slot.payload.data_ptr() == payload.data_ptr()
    assert holds(slot, 3)


def test_only_what_room_gave_can_be_kept_and_only_once() -> None:
    arena = Arena()
    room = arena.room(100)
    with pytest.raises(InternalError, match=r"expected a tensor from Arena\.room"):
        arena.keep(room[10:], 10)
    arena.keep(room, 10)
    for wrong in (room, torch.empty(100, dtype=torch.uint8)):
        with pytest.raises(InternalError, match=r"expected a tensor from Arena\.room"):
            arena.keep(wrong, 10)


def test_a_step_that_is_a_stack_ends_empty_and_the_next_touches_nothing_new() -> None:
    arena = Arena()
    first = arena.room(1).data_ptr()
    touched = []
    for _ in range(20):
        slots = [put(arena, 10_000 * layer, MIB, value=layer) for layer in range(1, 50)]
        assert all(holds(slot, layer) for layer, slot in enumerate(slots, 1))
        while slots:
            slots.pop()
        assert arena.nbytes_live == 0
        assert arena.room(1).data_ptr() == first
        touched.append(arena.nbytes_touched)
    assert touched == [touched[0]] * 20
    assert arena.n_chunks == 1


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_release(seed: int) -> None:
    order = random.Random(seed)
    arena = Arena(Heap(region_nbytes=8 * MIB))
    first = arena.room(1).data_ptr()
    slots: list[tuple[Slot, int]] = []
    for n in range(3000):
        if slots and order.random() < 0.5:
            slot, value = slots.pop(order.randrange(len(slots)))
            assert holds(slot, value)
        else:
            used = order.randrange(20_000)
            slots.append((put(arena, used, used + order.randrange(50_000), value=n % 251), n % 251))
        slot = None
        assert arena.nbytes_live == sum(slot.nbytes for slot, _ in slots)
    assert all(holds(slot, value) for slot, value in slots)
    del slot, slots
    assert arena.nbytes_live == 0
    assert arena.room(1).data_ptr() == first


def forward(arena: Arena, seed: int) -> list[Slot]:
    """Forty tensors of up to a mebibyte, coded four to twenty times smaller."""
    sizes = random.Random(seed)
    slots = []
    for _ in range(40):
        worst = sizes.randrange(MIB)
        slots.append(put(arena, worst // sizes.randint(4, 20), worst))
    return slots


def backward(slots: list[Slot]) -> None:
    while slots:
        slots.pop()


def test_forward_before_the_last_backward_stays_bounded() -> None:
    arena = Arena()
    pending = forward(arena, 0)
    most_live = 0
    for step in range(1, 200):
        following = forward(arena, step)
        most_live = max(most_live, arena.nbytes_live)
        backward(pending)
        pending = following
    assert arena.n_chunks == 1
    assert arena.nbytes_touched < 2 * most_live + 4 * MIB


def test_the_order_of_a_gan_stays_bounded() -> None:
    arena = Arena()
    most_live = 0
    for step in range(0, 200, 4):
        on_real, generated, on_fake = (forward(arena, step + n) for n in range(3))
        most_live = max(most_live, arena.nbytes_live)
        backward(on_real)  # the discriminator's step; the generator's graph lives on
        backward(on_fake)
        judged = forward(arena, step + 3)
        backward(judged)
        backward(generated)
        assert arena.nbytes_live == 0
    assert arena.n_chunks == 1
    assert arena.nbytes_touched < 1.5 * most_live + 4 * MIB


def test_two_threads_encode_at_once() -> None:
    arena = Arena()
    both_reserved = threading.Barrier(2)
    kept: list[tuple[Slot, int]] = []

    def encode(value: int) -> None:
        for _ in range(50):
            both_reserved.wait(timeout=30)
            room = arena.room(MIB)
            both_reserved.wait(timeout=30)
            room[:10_000] = value
            kept.append((arena.keep(room, 10_000), value))

    threads = [threading.Thread(target=encode, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 100
    assert all(holds(slot, value) for slot, value in kept)
    assert arena.n_chunks == 2
    assert arena.nbytes_touched <= 4 * MIB  # a worst case apart it would be fifty


def test_slots_may_die_in_another_thread() -> None:
    arena = Arena()
    slots = [put(arena, 1000) for _ in range(100)]
    thread = threading.Thread(target=slots.clear)
    thread.start()
    thread.join()
    assert arena.nbytes_live == 0


def test_an_encoder_that_raises_or_asks_twice_leaks_nothing() -> None:
    arena = Arena()
    start = arena.room(1).data_ptr()

    def raises() -> None:
        arena.room(MIB)[:10] = 1
        raise ValueError

    for _ in range(10):
        with pytest.raises(ValueError):  # noqa: PT011
            raises()
        arena.drop(arena.room(MIB))
    assert arena.nbytes_live == 0
    assert arena.n_chunks == 1
    assert arena.room(1).data_ptr() == start


def test_two_reservations_of_one_thread_are_apart() -> None:
    arena = Arena()
    first, second = arena.room(1000), arena.room(1000)
    first[:], second[:] = 1, 2
    slots = arena.keep(first, 1000), arena.keep(second, 1000)
    assert holds(slots[0], 1)
    assert holds(slots[1], 2)


def test_garbage_collected_in_the_middle_of_a_call_does_not_lock_up() -> None:
    arena = Arena()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list = [put(arena, 100)]
            cycle.append(cycle)
    finally:
        gc.set_threshold(*threshold)
    del cycle
    gc.collect()
    assert arena.nbytes_live == 0


def test_memory_goes_back_to_the_system_on_close() -> None:
    if resident_now() is None:
        pytest.skip("this system does not tell the resident set")
    arena = Arena()
    slots = [put(arena, MIB, value=5) for _ in range(100)]
    full = resident_now()
    slots[1:] = []
    assert resident_now() > full - 8 * MIB  # warm pages stay for the next step
    arena.close()
    assert holds(slots[0], 5)
    assert arena.nbytes_live == MIB
    assert arena.nbytes_touched >= 100 * MIB
    slots.clear()
    assert resident_now() < full - 92 * MIB
    assert (arena.nbytes_live, arena.nbytes_touched, arena.n_chunks) == (0, 0, 0)
    assert holds(put(arena, 100, value=3), 3)


def test_memory_goes_back_when_nobody_closes() -> None:
    if resident_now() is None:
        pytest.skip("this system does not tell the resident set")
    arena = Arena()
    put(arena, 100 * MIB)
    full = resident_now()
    del arena
    assert resident_now() < full - 92 * MIB


def test_a_payload_that_outlives_its_arena_can_be_read() -> None:
    payload = put(Arena(), MIB, value=4).payload
    assert (payload == 4).all()


def child_works(arena: Arena, slots: list[Slot]) -> bool:
    """Write and free; without torch's operators, whose threads did not survive the fork."""
    slots[2:] = []
    slot = put(arena, 2 * MIB, value=99)
    return holds(slot, 99) and holds(slots[1], 1) and arena.nbytes_live == 4 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_changes_nothing_in_its_parent() -> None:
    arena = Arena()
    slots = [put(arena, MIB, value=value) for value in range(5)]
    arena._heap.lock.acquire()  # as another thread may at the moment of the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside torch's threads
        pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if child_works(arena, slots) else 1)
        finally:
            os._exit(2)
    arena._heap.lock.release()
    assert os.waitpid(pid, 0)[1] == 0
    assert all(holds(slot, value) for value, slot in enumerate(slots))
    assert arena.nbytes_live == 5 * MIB


def test_a_slot_cannot_be_copied() -> None:
    with pytest.raises(InternalError, match=r"clone slot\.payload"):
        copy.deepcopy(put(Arena(), 10))


AT_EXIT = """
import sys, threading
from slimgrad.storage import Arena, Buffers, Heap
heap = Heap()
arena, buffers = Arena(heap), Buffers(heap)
slots = [arena.keep(arena.room(1000), 500) for _ in range(10)]
taken = [buffers.take(1000) for _ in range(10)]
room = arena.room(1000)
cycle = [arena.keep(room, 10), buffers.take(10)]
cycle.append(cycle)
sys.modules["kept until the very end"] = cycle
threading.Thread(target=lambda: [arena.keep(arena.room(100), 10) for _ in range(1000)]).start()
"""


def test_the_end_of_the_interpreter_is_quiet() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT], capture_output=True, text=True, check=True, env=HERE
    )
    assert done.stderr == ""


def test_a_slot_is_cheap() -> None:
    """Measured: 4.8 times the tensor that every room is made of, which takes a microsecond."""
    arena = Arena()
    values = np.zeros(10_000, dtype=np.uint8)

    def slot() -> None:
        room = arena.room(10_000)
        arena.keep(room, room.numel())

    tensor = min(timeit.repeat(lambda: torch.from_numpy(values[64:]), timer=thread_time, number=1000, repeat=40))
    assert min(timeit.repeat(slot, timer=thread_time, number=1000, repeat=40)) < 10 * tensor
