"""The bytes of coded tensors, in a few large chunks of lazily touched memory.

    room = arena.room(worst_case)          exclusive until keep() or drop(), or until nobody holds the tensor any more
    slot = arena.keep(room, used)          the rest of the reservation is given back
    slot.payload                           the bytes; they are the arena's again when the slot dies
    arena.trim()                           once per step: pages that no recent step used go back to the system

Note [Who owns the bytes]. The Slot does, and the autograd graph owns the Slot: there is no table of ids and nothing to
reset. Until keep() the reservation is a Slot too, and the tensor that room() returned owns it, so that an encoder that
raises, or asks twice, leaks nothing. A destructor may run at any moment in any thread, also inside a garbage collection
in the middle of room(); it therefore takes no lock and only appends to a deque, which the next call works off.

Note [How a chunk is filled]. A chunk is a stack of ends: slots are put on top, and when the top one dies the top retreats
below every dead one under it. A usual training step is a stack and ends empty at offset 0, on pages that are already
there. Where the order is another one (forward k + 1 before backward k), a chunk comes back when its last slot dies. For
that to be soon, a chunk counts as full at a fill limit far below its size: address space is large so that worst-case
requests fit, the fill is small so that what one long-lived slot can block is small.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from typing import NoReturn

import torch

from slimgrad.errors import InternalError, StorageFull
from slimgrad.storage.pages import HUGE, Region, round_up, unlock_in_child

ALIGNMENT = 64  # bytes: a cache line, and the widest vector a kernel may load
CHUNK_NBYTES = 1 << 28 if sys.maxsize > 1 << 32 and os.name != "nt" else 1 << 24  # Windows charges for address space
FILL_NBYTES = 1 << 24  # a chunk takes no further slot beyond this ...
FILL_SHARE = 8  # ... or beyond this part of all live bytes, so that there are few chunks however much is live
PATIENCE = 16  # trims for which pages stay that nobody used
_RESERVATION = "_slimgrad_slot"  # attribute of the tensor that room() returns


class Chunk:
    """One region filled from the bottom; see Note [How a chunk is filled]."""

    __slots__ = ("__weakref__", "dead", "ends", "high", "is_reserved", "last_use", "live", "order", "region", "top")

    def __init__(self, size: int, order: int) -> None:
        self.region = Region(size, huge=True)
        self.order = order
        self.ends: list[int] = []  # of the slots from bottom to top; -1 where a slot has died below the top
        self.dead: deque[tuple[int, int]] = deque()  # index and bytes of slots that died and are not yet buried
        self.top = 0
        self.high = 0  # the largest top since pages above it were last given back
        self.live = 0  # bytes of kept slots
        self.is_reserved = False  # how much of the top slot stays is not known yet: nothing may be put above it
        self.last_use = 0

    def push(self, nbytes: int) -> Slot:
        slot = Slot(self, len(self.ends), self.top)
        self.top += nbytes
        self.ends.append(self.top)
        self.is_reserved = True
        return slot

    def settle(self, slot: Slot, used: int) -> None:
        """End the reservation of the top slot: only its first `used` bytes stay."""
        self.top = self.ends[-1] = slot._start + round_up(used, ALIGNMENT)
        self.is_reserved = False
        self.live += used
        if self.top > self.high:
            self.high = self.top
            self.region.touch(self.top)

    def bury(self) -> None:
        """Take the slots that have died out of the stack."""
        ends = self.ends
        while self.dead:
            index, nbytes = self.dead.popleft()
            self.live -= nbytes
            if index < len(ends) - 1:
                ends[index] = -1
                continue
            if self.is_reserved:  # dropped: its writer may have touched all of it
                self.region.touch(self.top)
                self.is_reserved = False
            ends.pop()
            while ends and ends[-1] < 0:
                ends.pop()
            self.top = ends[-1] if ends else 0


class Slot:
    """Bytes in the arena, given back when this object dies."""

    __slots__ = ("__weakref__", "_chunk", "_index", "_start", "nbytes", "payload")

    payload: torch.Tensor  # uint8, one-dimensional; set by keep()

    def __init__(self, chunk: Chunk, index: int, start: int) -> None:
        self._chunk = chunk
        self._index = index
        self._start = start
        self.nbytes = 0  # until keep()

    def __del__(self) -> None:
        self._chunk.dead.append((self._index, self.nbytes))

    def __reduce__(self) -> NoReturn:
        raise InternalError("a Slot belongs to its arena and cannot be copied or pickled; clone slot.payload instead")


class Arena:
    """Chunks, and the slots in them. Thread-safe; a forked child goes on with copies of its own."""

    def __init__(self, chunk_nbytes: int = CHUNK_NBYTES, fill_nbytes: int = FILL_NBYTES) -> None:
        self._chunk_nbytes = chunk_nbytes
        self._fill_nbytes = fill_nbytes
        self._chunks: list[Chunk] = []  # in the order of their age: the oldest is filled first
        self._closed: weakref.WeakSet[Chunk] = weakref.WeakSet()  # alive only as long as slots in them are
        self._n_mapped = 0
        self._epoch = 0
        self._lock = threading.Lock()
        unlock_in_child(self)

    def room(self, nbytes: int) -> torch.Tensor:
        """Return at least `nbytes` writable bytes; they cost nothing until they are written."""
        nbytes = round_up(nbytes, ALIGNMENT) or ALIGNMENT
        with self._lock:
            chunk = self._chunk_for(nbytes)
            chunk.last_use = self._epoch
            slot = chunk.push(nbytes)
        start = slot._start
        room = torch.from_numpy(chunk.region.values[start : start + nbytes])
        room.__dict__[_RESERVATION] = slot  # Note [Who owns the bytes]
        return room

    def keep(self, room: torch.Tensor, used: int) -> Slot:
        """Return the slot of the first `used` bytes of `room`; a view that starts where `room` does will do."""
        slot = _end_reservation(room)
        slot.payload = room if room.numel() == used else room[:used]
        with self._lock:
            slot.nbytes = used
            slot._chunk.settle(slot, used)
        return slot

    def drop(self, room: torch.Tensor) -> None:
        """Give the whole reservation back."""
        _end_reservation(room)

    @property
    def nbytes_live(self) -> int:
        """Bytes in the slots that are alive."""
        return sum(chunk.live for chunk in self._buried())

    @property
    def nbytes_touched(self) -> int:
        """Bytes that are resident because some slot has been there, whether one is there now or not."""
        return sum(chunk.region.touched for chunk in self._buried())

    @property
    def n_chunks(self) -> int:
        return len(self._chunks)

    def owns(self, address: int) -> bool:
        """Return whether the byte at this address is the arena's."""
        return any(chunk.region.contains(address) for chunk in (*self._chunks, *self._closed))

    def trim(self) -> None:
        """Count one step; give back pages that the last PATIENCE steps did not use. After warm-up there are none."""
        with self._lock:
            self._epoch += 1
            for chunk in list(self._chunks):
                chunk.bury()
                if chunk.is_reserved:
                    continue
                if not chunk.ends and self._epoch - chunk.last_use > PATIENCE:
                    self._chunks.remove(chunk)
                elif self._epoch % PATIENCE == 0:
                    if chunk.region.touched > chunk.high + HUGE:
                        chunk.region.forget(chunk.high)
                    chunk.high = chunk.top

    def close(self) -> None:
        """Give all memory back to the system; a chunk with live slots goes when the last of them dies."""
        with self._lock:
            for chunk in self._chunks:
                chunk.bury()
                if chunk.ends:
                    self._closed.add(chunk)
            self._chunks = []

    def _buried(self) -> list[Chunk]:
        with self._lock:
            chunks = [*self._chunks, *self._closed]
            for chunk in chunks:
                chunk.bury()
            return chunks

    def _chunk_for(self, nbytes: int) -> Chunk:
        live = 0
        for chunk in self._chunks:
            if chunk.dead:
                chunk.bury()
            live += chunk.live
        limit = max(self._fill_nbytes, live // FILL_SHARE)
        for chunk in self._chunks:
            if chunk.top < limit and not chunk.is_reserved and chunk.top + nbytes <= chunk.region.size:
                return chunk
        return self._new_chunk(nbytes)

    def _new_chunk(self, nbytes: int) -> Chunk:
        size = self._chunk_nbytes
        while size < 2 * nbytes:
            size *= 2
        try:
            chunk = Chunk(size, self._n_mapped)
        except OSError:  # address space is limited: take what is needed now
            try:
                chunk = Chunk(nbytes, self._n_mapped)
            except OSError as error:
                raise StorageFull(
                    f"the arena expected {nbytes:,} bytes of memory from the system, got: {error}; "
                    "use a smaller batch, or raise the limit on address space (ulimit -v)"
                ) from error
        self._n_mapped += 1
        self._chunks.append(chunk)
        return chunk


def _end_reservation(room: torch.Tensor) -> Slot:
    base = room if room._base is None else room._base
    slot = base.__dict__.pop(_RESERVATION, None)
    if slot is None or room.data_ptr() != base.data_ptr():
        raise InternalError("expected a tensor from Arena.room(), or a view of its first bytes, kept or dropped once")
    return slot
