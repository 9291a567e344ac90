"""The bytes of coded tensors.

    slot = arena.reserve(worst_case)       exclusive until settle(), or until nobody holds the slot any more
    arena.settle(slot, used)               the rest of the reservation is given back
    room = arena.room(worst_case)          the same as a tensor, for encoders that write tensors ...
    slot = arena.keep(room, used)          ... or views of its first bytes
    slot.payload                           the bytes; they are the heap's again when the slot dies
    arena.trim()                           once per step: pages that the next ones do without go back

Note [Who owns the bytes]. The Slot does, and the autograd graph owns the Slot: there is no table of ids and nothing to
reset. A reservation is a Slot too, and the tensor that room() returned owns it, so that an encoder that raises, or asks
twice, leaks nothing. How bytes come back: Note [Who gives back] in heap.py.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from slimgrad.errors import InternalError
from slimgrad.storage.heap import ALIGNMENT, DROPPED, Heap, Region

_RESERVATION = "_slimgrad_slot"  # attribute of the tensor that room() returns


class Slot:
    """Bytes in the arena, given back when this object dies."""

    __slots__ = ("__weakref__", "_end", "_region", "_start", "address", "nbytes")

    def __init__(self, region: Region, start: int, end: int) -> None:
        self._region = region
        self._start = start
        self._end = end
        self.nbytes = DROPPED  # until settle()
        self.address = region.pages.address + start

    @property
    def payload(self) -> torch.Tensor:
        """The bytes, one-dimensional uint8."""
        return torch.from_numpy(self._region.pages.values[self._start : self._start + self.nbytes])

    def __del__(self) -> None:
        self._region.dead.append((self._start, self._end, self.nbytes))

    def __reduce__(self) -> NoReturn:
        raise InternalError("a Slot belongs to its arena and cannot be copied or pickled; clone slot.payload instead")


class Arena:
    """Slots in a heap. Thread-safe; a forked child goes on with copies of its own."""

    def __init__(self, heap: Heap | None = None) -> None:
        self._heap = heap or Heap()

    def reserve(self, nbytes: int) -> Slot:
        """Return a slot with at least `nbytes` writable bytes; they cost nothing until they are written."""
        nbytes = (nbytes + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT
        heap = self._heap
        with heap.lock:
            region, start = heap.reserve(nbytes, is_open=True)
            slot = Slot(region, start, start + nbytes)
            region.is_reserved = True
        return slot

    def settle(self, slot: Slot, used: int) -> None:
        """Keep the first `used` bytes of a reservation."""
        region, start = slot._region, slot._start
        end = start + ((used + ALIGNMENT - 1) & -ALIGNMENT)
        with self._heap.lock:
            region.cut_at(start, end)  # first: an interrupt after it loses the range, none gives it back twice
            slot._end, slot.nbytes = end, used
            region.nbytes_coded += used
            region.is_reserved = False
            if end > region.high or end > region.pages.touched:
                region.use(end)

    def room(self, nbytes: int) -> torch.Tensor:
        """Return a reservation as a tensor, one-dimensional uint8."""
        slot = self.reserve(nbytes)
        room = torch.from_numpy(slot._region.pages.values[slot._start : slot._end])
        setattr(room, _RESERVATION, slot)  # Note [Who owns the bytes]
        return room

    def keep(self, room: torch.Tensor, used: int) -> Slot:
        """Return the slot of the first `used` bytes of `room`; a view that starts where `room` does will do."""
        slot = _end_reservation(room)
        self.settle(slot, used)
        return slot

    def drop(self, room: torch.Tensor) -> None:
        """Give the whole reservation back."""
        _end_reservation(room)

    @property
    def nbytes_live(self) -> int:
        """Bytes in the slots that are alive."""
        with self._heap.lock:
            return sum(region.nbytes_coded for region in self._heap.regions())

    @property
    def nbytes_touched(self) -> int:
        """Resident bytes of the heap, in use or not, without those that are lent to decode buffers now."""
        with self._heap.lock:
            return sum(region.pages.touched - region.nbytes_lent for region in self._heap.regions())

    @property
    def nbytes_peak(self) -> int:
        """The most bytes of the heap that were ever touched at once, decode buffers included."""
        return self._heap.nbytes_peak

    @property
    def n_chunks(self) -> int:
        """Pieces of address space in use: one, unless several threads encode at once."""
        return self._heap.n_regions

    def owns(self, address: int) -> bool:
        """Return whether the byte at this address is the heap's."""
        return self._heap.owns(address)

    def trim(self) -> None:
        """Count one step; pages that the next ones do without go back to the system. Once per heap is enough."""
        self._heap.trim()

    def close(self) -> None:
        """Give all memory back to the system; what is in use goes when the last slot or tensor on it dies."""
        self._heap.close()


def _end_reservation(room: torch.Tensor) -> Slot:
    slot, owner = getattr(room, _RESERVATION, None), room
    if slot is None and room._base is not None and room._base.data_ptr() == room.data_ptr():
        owner = room._base
        slot = getattr(owner, _RESERVATION, None)
    if slot is None:
        raise InternalError("expected a tensor from Arena.room(), or a view of its first bytes, kept or dropped once")
    delattr(owner, _RESERVATION)
    return slot
