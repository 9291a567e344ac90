"""Room to decode into, reused for ever: decoding into warm pages runs several times faster than into fresh ones.

    values = buffers.take(nbytes)          uint8, one-dimensional; view it as the dtype of the restored tensor
    values = buffers.take_array(shape, dtype, strides, nbytes)      in numpy's terms: dtype, strides in bytes

The memory returns to the heap when the tensor's storage dies, which is when the last view of it is gone, wherever that
got to, and not before. Nothing has to be given back by hand.

Note [How a buffer comes back]. A torch storage made from a numpy array holds that array, and nothing else does. A weak
reference to the array has the `append` of the region's deque as its callback: no Python code runs in the destructor, so
it may happen in any thread, inside a garbage collection, or while the interpreter shuts down.

A buffer that was asked for with n bytes takes n bytes, rounded up to a cache line. Heap and reuse: see heap.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slimgrad.storage.heap import ALIGNMENT, Heap, Lease, Region
from slimgrad.storage.pages import round_up


class Buffers:
    """Decode buffers in a heap. Thread-safe; a forked child goes on with copies of its own."""

    def __init__(self, heap: Heap | None = None) -> None:
        self._is_alone = heap is None
        self._heap = heap or Heap()

    def take(self, nbytes: int, unit: int = ALIGNMENT) -> torch.Tensor:
        """Return `nbytes` bytes of undefined content, beginning and, unseen by the tensor, ending at a whole `unit`."""
        heap = self._heap
        size = round_up(nbytes, unit) or unit
        size += unit - ALIGNMENT  # the heap itself knows only ALIGNMENT
        with heap.lock:
            region, start = heap.reserve(size)
            heap.lend(region, start + size)
            first = round_up(start, unit)
            array = region.pages.values[first : first + nbytes]
            _lend(region, array, start, start + size)
        return torch.from_numpy(array)

    def take_array(self, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int], nbytes: int) -> torch.Tensor:
        """Return a tensor of undefined values that spans exactly `nbytes`; one tensor is made, where views take three.

        The caller vouches for the span: no element may lie beyond it.
        """
        heap = self._heap
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT
        with heap.lock:
            region, start = heap.reserve(size)
            end = start + size
            heap.lend(region, end)
            array = np.ndarray(shape, dtype, region.pages.values, start, strides)
            _lend(region, array, start, end)
        return torch.from_numpy(array)

    @property
    def nbytes_live(self) -> int:
        """Bytes of the buffers that are in use."""
        with self._heap.lock:
            return sum(region.nbytes_lent for region in self._heap.regions())

    @property
    def nbytes_held(self) -> int:
        """Resident bytes of the pool. What an arena on the same heap touched and nobody uses counts there, not here."""
        return self._heap.nbytes_touched if self._is_alone else self.nbytes_live

    def owns(self, address: int) -> bool:
        """Return whether the byte at this address is the heap's."""
        return self._heap.owns(address)

    def trim(self) -> None:
        """Count one step; pages that the next ones do without go back to the system. Once per heap is enough."""
        self._heap.trim()

    def close(self) -> None:
        """Give all memory back to the system; what is in use goes when the last tensor on it dies."""
        self._heap.close()


def _lend(region: Region, array: np.ndarray, start: int, end: int) -> None:
    """Have the bytes come back when the array dies; see Note [How a buffer comes back]."""
    lease = Lease(array, region.returned.append)
    lease.start = start
    lease.end = end
    region.lent.add(lease)
