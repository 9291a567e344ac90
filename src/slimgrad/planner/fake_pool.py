"""The heap without memory: where coded bytes and buffers would lie, and how many pages that would touch.

Ranges are cut and mended by the heap's own code (storage/heap.py), so gaps, whole pages and what stays warm between two
steps are the real ones. Only the address space behind them is not mapped.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable

import numpy as np
import torch

from slimgrad.storage import Arena, Heap, Slot
from slimgrad.storage.heap import ALIGNMENT
from slimgrad.storage.pages import HUGE, Pages, grants_huge_pages, round_up

ENDLESS = 1 << 50  # bytes of address space: one region holds whatever is predicted


class Unmapped(Pages):
    """Pages that are counted and do not exist."""

    __slots__ = ()

    def __init__(self, nbytes: int) -> None:
        self.size = nbytes
        self.is_huge = grants_huge_pages()
        self._unit = HUGE if self.is_huge else mmap.PAGESIZE
        self.values = np.empty(0, dtype=np.uint8)
        self.address = self.touched = 0

    def touch_written(self, end: int) -> None:
        """Nobody writes here."""

    def forget(self, start: int) -> None:
        self.touched = min(self.touched, round_up(start, self._unit))


class Pool:
    """Stands for arena and buffers of a session on fake tensors."""

    def __init__(self) -> None:
        self._heap = Heap(ENDLESS, Unmapped)
        self._arena = Arena(self._heap)
        self.clock = 0  # operators so far in this step
        self.beside: list[Callable[[], None]] = []  # what a worker has to do, and has done after the next operator
        self._highest = 0  # end of what was in use, since level() was asked
        self._is_making = False  # a buffer, which operators see before it is noted
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def tick(self, clock: int) -> None:
        """Note that an operator has run, and that its worker had time."""
        self.clock = clock
        jobs, self.beside = self.beside, []
        for job in jobs:
            job()

    @property
    def now(self) -> int:
        """Bytes in use."""
        return self._arena.nbytes_live

    @property
    def touched(self) -> int:
        """Bytes that are resident."""
        return self._heap.nbytes_touched

    def reserve(self, nbytes: int, capacity: int | None = None) -> Slot:
        """Return room for `nbytes`, of which up to `capacity` had to be free until their number was known."""
        slot = self._arena.reserve(nbytes if capacity is None else capacity)
        self._arena.settle(slot, nbytes)
        self._highest = max(self._highest, self._top())
        return slot

    def take(self, nbytes: int, unit: int = ALIGNMENT) -> torch.Tensor:
        """Return a fake buffer to decode into."""
        slot = self.reserve((round_up(nbytes, unit) or unit) + unit - ALIGNMENT)
        self._is_making = True
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        self._is_making = False
        storage = buffer.untyped_storage()
        self._storages.add(storage)
        weakref.finalize(storage, _let_go, [slot]).atexit = False
        return buffer

    def owns(self, storage: torch.UntypedStorage) -> bool:
        return self._is_making or storage in self._storages

    def level(self) -> int:
        """Return how far the bytes in use reached since this was last asked."""
        found, self._highest = max(self._highest, self._top()), self._top()
        return found

    def trim(self) -> None:
        """End a step; see Note [What stays warm] in heap.py."""
        self._heap.trim()

    def close(self) -> None:
        """Nothing to give back."""

    def _top(self) -> int:
        with self._heap.lock:
            return max((region.top for region in self._heap.regions()), default=0)


def _let_go(slots: list[Slot]) -> None:
    slots.clear()
