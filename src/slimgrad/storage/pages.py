"""Memory straight from the system: address space is reserved at once, a page costs nothing until it is written.

A Region is a private anonymous mapping. It counts how far it has been touched, because only that part is resident, and
can hand pages back while it stays mapped. It is unmapped by its last reference: tensors made from `values` keep it alive,
so memory that somebody can still reach is never given away.

Private mappings are copied on write after a fork: a child never changes what its parent sees. What a fork does break is
a lock that another thread held at that moment; `unlock_in_child` mends it.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from typing import Protocol

import numpy as np

PAGE = mmap.PAGESIZE
HUGE = 1 << 21  # bytes of a transparent huge page on x86-64, and on arm64 with pages of 4 KiB
# Python below 3.13 does not name the flag; the value is that of Linux on every architecture torch runs on.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def round_up(nbytes: int, unit: int) -> int:
    """Return the smallest multiple of `unit`, a power of two, that is at least `nbytes`."""
    return (nbytes + unit - 1) & -unit


class Region:
    """`size` bytes of address space, of which the first `touched` count as resident."""

    __slots__ = ("_memory", "_unit", "size", "touched", "values")

    def __init__(self, size: int, huge: bool) -> None:
        self.size = round_up(size, HUGE if huge else PAGE)
        self._memory = _map(self.size)
        self._unit = HUGE if huge and _ask_for_huge_pages(self._memory) else PAGE
        self.values = np.frombuffer(self._memory, dtype=np.uint8)
        self.touched = 0

    def touch(self, end: int) -> None:
        """Note that bytes below `end` may have been written."""
        if end > self.touched:
            self.touched = min(round_up(end, self._unit), self.size)

    def contains(self, address: int) -> bool:
        return 0 <= address - self.values.ctypes.data < self.size

    def forget(self, start: int) -> None:
        """Give the pages at and above `start` back to the system; their content is lost."""
        start = round_up(start, self._unit)
        if start < self.touched and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED, start, self.touched - start)
            self.touched = start


def _map(size: int) -> mmap.mmap:
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)


def _ask_for_huge_pages(memory: mmap.mmap) -> bool:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel built without them
        return False
    return True


class Locked(Protocol):
    """Whatever guards its state with a lock of this name."""

    _lock: threading.Lock


_LOCKED: weakref.WeakSet[Locked] = weakref.WeakSet()


def unlock_in_child(pool: Locked) -> None:
    """Give `pool` a fresh lock in every child process forked from now on."""
    _LOCKED.add(pool)


def _unlock_all() -> None:
    for pool in _LOCKED:
        pool._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
