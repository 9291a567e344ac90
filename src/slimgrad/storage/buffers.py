"""Room to decode into, reused for ever: decoding into warm pages runs several times faster than into fresh ones.

    values = buffers.take(nbytes)          uint8, one-dimensional; view it as the dtype of the restored tensor

The memory returns to the pool when the tensor's storage dies, which is when the last view of it is gone, wherever it got
to, and not before. Nothing has to be given back by hand.

Note [How a buffer comes back]. A torch storage made from a numpy array holds that array and nothing else does. A weak
reference to the array has the pool's `deque.append` as its callback: no Python code runs in the destructor, so it may
happen in any thread, inside a garbage collection, or while the interpreter shuts down.

Note [Which buffer]. A buffer is far more address space than it has touched pages, so it grows in place. Of the free ones
the smallest that is touched far enough is taken, else the largest grows.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque

import torch

from slimgrad.storage.pages import HUGE, Region, unlock_in_child

RESERVE_NBYTES = 1 << 28  # address space of a buffer, so that it can grow in place
PATIENCE = 16  # trims (one per step) for which a buffer stays that nobody took


class Lease(weakref.ref):
    """A weak reference to the array of a buffer that is in use; it knows which buffer."""

    __slots__ = ("buffer", "nbytes")

    buffer: Buffer
    nbytes: int
    __hash__ = object.__hash__  # by identity: the array itself has no hash
    __eq__ = object.__eq__


class Buffer:
    """One region; `region.touched` of it is resident."""

    __slots__ = ("high", "last_use", "region")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.high = 0  # the most that was asked of it since its pages were last given back
        self.last_use = 0


class Buffers:
    """A pool of decode buffers. Thread-safe; a forked child goes on with copies of its own."""

    def __init__(self) -> None:
        self._free: list[Buffer] = []
        self._taken: set[Lease] = set()
        self._returned: deque[Lease] = deque()
        self._epoch = 0
        self._lock = threading.Lock()
        unlock_in_child(self)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` bytes of undefined content, aligned to a page."""
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            self._collect()
            buffer = self._best(nbytes)
            array = buffer.region.values[:nbytes]
            lease = Lease(array, self._returned.append)
            lease.buffer = buffer
            lease.nbytes = nbytes
            self._taken.add(lease)
        return torch.from_numpy(array)

    @property
    def nbytes_live(self) -> int:
        """Bytes that were asked for and are still in use."""
        with self._lock:
            self._collect()
            return sum(lease.nbytes for lease in self._taken)

    @property
    def nbytes_held(self) -> int:
        """Bytes that are resident, in use or not."""
        with self._lock:
            self._collect()
            held = sum(lease.buffer.region.touched for lease in self._taken)
            return held + sum(buffer.region.touched for buffer in self._free)

    def owns(self, address: int) -> bool:
        """Return whether the byte at this address is the pool's."""
        with self._lock:
            buffers = [*self._free, *(lease.buffer for lease in self._taken)]
        return any(buffer.region.contains(address) for buffer in buffers)

    def trim(self) -> None:
        """Count one step; release what the last PATIENCE steps did not use. After warm-up there is nothing."""
        with self._lock:
            self._collect()
            self._epoch += 1
            self._free = [buffer for buffer in self._free if self._epoch - buffer.last_use <= PATIENCE]
            if self._epoch % PATIENCE == 0:
                for buffer in self._free:
                    if buffer.region.touched > buffer.high + HUGE:
                        buffer.region.forget(buffer.high)
                    buffer.high = 0

    def close(self) -> None:
        """Give all memory back to the system; what is in use goes when the last tensor on it dies."""
        with self._lock:
            self._free.clear()
            self._taken.clear()
            self._returned.clear()

    def _collect(self) -> None:
        returned = self._returned
        while returned:
            lease = returned.popleft()
            if lease in self._taken:  # not after close()
                self._taken.remove(lease)
                self._free.append(lease.buffer)

    def _best(self, nbytes: int) -> Buffer:
        """Take a buffer out of the pool; see Note [Which buffer]."""
        best = None
        for buffer in self._free:
            if buffer.region.size < nbytes:
                continue
            if best is None or _is_better(buffer.region.touched, best.region.touched, nbytes):
                best = buffer
        if best is None:
            best = Buffer(Region(max(RESERVE_NBYTES, 2 * nbytes), huge=nbytes >= HUGE))
        else:
            self._free.remove(best)
        best.region.touch(nbytes)
        best.high = max(best.high, nbytes)
        best.last_use = self._epoch
        return best


def _is_better(touched: int, best: int, nbytes: int) -> bool:
    if touched >= nbytes:
        return best < nbytes or touched < best
    return best < nbytes and touched > best
