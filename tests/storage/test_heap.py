"""Heap: ranges never overlap, gaps merge, whatever the order of release; limits of the system are met half-way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimgrad.storage import Arena, Buffers, Heap, Slot, pages
from slimgrad.storage.heap import ALIGNMENT, LATEST, PATIENCE, WARM, Region
from slimgrad.storage.pages import Pages

MIB = 1 << 20
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def check_gaps(region: Region, used: dict[int, int]) -> None:
    """Assert that gaps and used ranges cover the region exactly, each gap as large as it can be."""
    parts = sorted([*used.items(), *region.gaps])
    assert parts[0][0] == 0
    assert parts[-1][1] == region.pages.size + 1
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    assert region.gaps == sorted(region.gaps)
    assert all(left[1] < right[0] for left, right in pairwise(region.gaps))


@given(st.lists(st.one_of(st.integers(1, 40), st.just(0)), max_size=80), st.randoms(use_true_random=False))
def test_gaps_and_used_ranges_always_cover_the_region(sizes: list[int], random) -> None:
    region = Region(Pages(MIB))
    used: dict[int, int] = {}
    for size in sizes:  # 0: give one back
        if size:
            start = region.cut(size * ALIGNMENT)
            assert start == min(s for s, e in [*region.gaps, (start, start)] if s >= start)
            used[start] = start + size * ALIGNMENT
        elif used:
            start = random.choice(list(used))
            region.mend(start, used.pop(start))
        check_gaps(region, used)
    for start, end in used.items():
        region.mend(start, end)
    assert region.gaps == [(0, region.pages.size + 1)]


def test_the_lowest_gap_that_fits_is_taken() -> None:
    region = Region(Pages(MIB))
    starts = [region.cut(4 * ALIGNMENT) for _ in range(4)]
    region.mend(starts[0], starts[1])
    region.mend(starts[2], starts[3])
    assert region.cut(5 * ALIGNMENT) == 16 * ALIGNMENT
    assert region.cut(ALIGNMENT) == starts[0]
    assert region.cut(4 * ALIGNMENT) == starts[2]


def test_a_region_can_be_filled_and_not_overfilled() -> None:
    region = Region(Pages(2 * MIB))
    assert region.cut(2 * MIB) == 0
    assert region.cut(ALIGNMENT) == -1
    region.mend(0, 2 * MIB)
    assert region.cut(2 * MIB + ALIGNMENT) == -1


def test_a_full_region_makes_another() -> None:
    heap = Heap(region_nbytes=4 * MIB)
    arena = Arena(heap)
    slots = [arena.keep(arena.room(MIB), MIB) for _ in range(9)]
    assert heap.n_regions == 3
    assert arena.nbytes_live == 9 * MIB
    del slots
    assert arena.nbytes_live == 0


def test_a_request_larger_than_a_region_gets_one_of_its_own() -> None:
    heap = Heap(region_nbytes=4 * MIB)
    assert Buffers(heap).take(9 * MIB).numel() == 9 * MIB


def test_coded_bytes_and_buffers_share_their_pages() -> None:
    """A step of ten layers whose tensors shrink by half from layer to layer, coded 16 times smaller."""
    heap = Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    sizes = [max(MIB, 64 * MIB >> layer) for layer in range(10)]
    for _ in range(3):
        slots = [arena.keep(arena.room(size), size // 16) for size in sizes]
        for size in reversed(sizes):
            decoded = buffers.take(size)
            slots.pop()
            del decoded
    most_live = max(sum(sizes[: layer + 1]) // 16 + size for layer, size in enumerate(sizes))
    assert heap.nbytes_touched < most_live + 3 * MIB
    assert arena.nbytes_touched + buffers.nbytes_held == heap.nbytes_touched


def test_each_byte_counts_once_whoever_has_it() -> None:
    heap = Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    slot = arena.keep(arena.room(8 * MIB), 5 * MIB)
    taken = buffers.take(3 * MIB)
    assert (arena.nbytes_live, buffers.nbytes_live, buffers.nbytes_held) == (slot.nbytes, taken.numel(), 3 * MIB)
    assert arena.nbytes_touched + buffers.nbytes_held == heap.nbytes_touched == 8 * MIB
    alone = Buffers()
    alone.take(3 * MIB)
    assert alone.nbytes_held >= 3 * MIB
    assert alone.nbytes_live == 0


@pytest.mark.parametrize(
    "ask", [lambda heap: Arena(heap).room(100), lambda heap: Buffers(heap).take(100)], ids=["room", "take"]
)
def test_only_one_thread_at_a_time_changes_the_gaps(ask) -> None:
    heap = Heap()
    thread = threading.Thread(target=ask, args=(heap,))
    with heap.lock:
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        assert heap.n_regions == 0
    thread.join(timeout=30)
    assert heap.n_regions == 1


def test_owns_its_memory_and_nothing_else() -> None:
    heap = Heap(region_nbytes=4 * MIB)
    arena = Arena(heap)
    inside = arena.room(100)
    assert heap.owns(inside.data_ptr())
    assert arena.owns(inside.data_ptr() + 99)
    assert not heap.owns(inside.data_ptr() - 1)
    assert not heap.owns(inside.data_ptr() + 4 * MIB)


needs_huge_pages = pytest.mark.skipif(not pages.grants_huge_pages(), reason="this system has no huge pages")


@pytest.fixture
def no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "grants_huge_pages", lambda: False)


def after_a_large_buffer() -> tuple[Heap, Arena, Slot]:
    """Return a heap with 30 MiB in use, and 100 MiB above them that a buffer has touched."""
    heap = Heap()
    arena = Arena(heap)
    kept = arena.keep(arena.room(30 * MIB).fill_(7), 30 * MIB)
    Buffers(heap).take(100 * MIB).fill_(1)
    return heap, arena, kept


@needs_huge_pages
def test_trim_gives_back_what_only_backward_needed() -> None:
    heap, arena, kept = after_a_large_buffer()
    assert heap.nbytes_touched == 130 * MIB
    heap.trim()
    assert heap.nbytes_touched == 30 * MIB
    assert bool((kept.payload == 7).all())
    del kept
    heap.trim()
    assert heap.nbytes_touched == WARM
    assert arena.nbytes_peak == heap.nbytes_peak == 130 * MIB


@needs_huge_pages
def test_pages_that_none_of_the_latest_buffers_needed_go_back_within_a_step() -> None:
    heap, _, kept = after_a_large_buffer()
    buffers = Buffers(heap)
    alive = buffers.take(8 * MIB).fill_(3)
    for n in range(1, LATEST):
        assert heap.nbytes_touched == 130 * MIB, f"after {n} buffers"
        buffers.take(4 * MIB).fill_(2)
    assert heap.nbytes_touched == 42 * MIB
    assert bool((kept.payload == 7).all())
    assert bool((alive == 3).all())
    assert heap.nbytes_peak == 130 * MIB
    buffers.take(100 * MIB).fill_(1)
    assert heap.nbytes_touched == 138 * MIB


@needs_huge_pages
def test_wide_and_narrow_layers_may_alternate() -> None:
    heap = Heap()
    buffers = Buffers(heap)
    for _ in range(3):
        buffers.take(100 * MIB)
        for _ in range(LATEST - 1):
            buffers.take(4 * MIB)
            assert heap.nbytes_touched == 100 * MIB


@needs_huge_pages
def test_a_buffer_beside_a_reservation_gives_nothing_back() -> None:
    heap = Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    buffers.take(100 * MIB)
    small = [buffers.take(MIB) for _ in range(LATEST - 1)]
    room = arena.room(60 * MIB).fill_(5)
    for _ in range(LATEST):
        buffers.take(MIB)
    slot = arena.keep(room, 60 * MIB)
    assert bool((slot.payload == 5).all())
    assert len(small) == LATEST - 1


@pytest.mark.usefixtures("no_huge_pages")
def test_where_fresh_pages_are_dear_nothing_goes_back_within_a_step() -> None:
    heap = Heap()
    buffers = Buffers(heap)
    buffers.take(100 * MIB)
    for _ in range(2 * LATEST):
        buffers.take(MIB)
    assert heap.nbytes_touched == 100 * MIB


def test_small_steps_stay_warm() -> None:
    heap = Heap()
    buffers = Buffers(heap)
    for _ in range(5 * PATIENCE):
        buffers.take(WARM)
        heap.trim()
        assert heap.nbytes_touched == WARM
        assert heap.n_regions == 1


@pytest.mark.parametrize("usual", [2 * MIB, 6 * MIB])
def test_one_large_step_among_small_ones_is_forgotten(usual: int) -> None:
    heap = Heap()
    buffers = Buffers(heap)
    buffers.take(WARM)
    for _ in range(2 * PATIENCE):
        buffers.take(usual)
        heap.trim()
    assert usual <= heap.nbytes_touched <= usual + pages.HUGE


@pytest.mark.usefixtures("no_huge_pages")
def test_where_fresh_pages_are_dear_they_stay_for_a_while() -> None:
    heap = Heap()
    buffers = Buffers(heap)
    buffers.take(100 * MIB)
    for _ in range(PATIENCE - 1):
        buffers.take(50 * MIB)
        heap.trim()
    assert heap.nbytes_touched == 100 * MIB
    for _ in range(PATIENCE + 1):
        buffers.take(50 * MIB)
        heap.trim()
    for _ in range(2 * PATIENCE):
        assert heap.nbytes_touched == 50 * MIB
        buffers.take(50 * MIB)
        heap.trim()


def test_trim_spares_a_reservation() -> None:
    heap = Heap()
    arena = Arena(heap)
    room = arena.room(100 * MIB).fill_(5)
    for _ in range(2 * PATIENCE):
        heap.trim()
    slot = arena.keep(room, 100 * MIB)
    assert bool((slot.payload == 5).all())
    assert heap.nbytes_touched == 100 * MIB


def test_a_region_that_nobody_uses_goes() -> None:
    heap = Heap()
    Buffers(heap).take(MIB)
    for _ in range(PATIENCE):
        heap.trim()
    assert heap.n_regions == 1
    heap.trim()
    assert (heap.n_regions, heap.nbytes_touched) == (0, 0)


LIMITED = """
import resource
from slimgrad.errors import StorageFull
from slimgrad.storage import Arena, Heap

with open("/proc/self/statm") as statm:
    now = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (400 << 20), now + (400 << 20)))
arena = Arena(Heap(1 << 36))
slots = [arena.keep(arena.room(10 << 20), 10 << 20) for _ in range(5)]
print("regions:", arena.n_chunks)
try:
    arena.room(1 << 31)
except StorageFull as error:
    print("StorageFull", error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process from /proc")
def test_a_limit_on_address_space_is_met_half_way() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False, env=HERE)
    assert "regions: 1\n" in done.stdout, done.stderr
    assert "StorageFull expected 2,147,483,648 bytes" in done.stdout, done.stderr
    assert "ulimit -v" in done.stdout
