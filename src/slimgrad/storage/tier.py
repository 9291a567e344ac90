"""The disk as a tier below the arena: bytes go there behind training's back and are back before they are asked for.

    spilled = tier.spill(slot)             a Slot, or a tensor of bytes: its memory is free once the bytes are written
    spilled.payload                        the bytes, from memory, from a read that is under way, or from disk
    tier.begin_step()                      what was read last time is the order of prefetching now

Note [Where the bytes are]. A Spilled has its source, its extent, or both: the extent is set before the source is let
go, so whoever finds no source finds an extent, without a lock. A write that fails, or is never begun because the worker
died, changes nothing: the source stays, and with it the bytes. `problem` then says what happened.

Note [Ahead]. A read tells the schedule, and the next ones are read by the worker meanwhile: a few, so that memory stays
bounded. A prefetched payload is handed over once; a second backward through the same graph reads again.
"""

from __future__ import annotations

import warnings

import torch

from slimgrad.errors import StorageFull
from slimgrad.storage.arena import Slot
from slimgrad.storage.buffers import Buffers
from slimgrad.storage.disk import BLOCK, Disk, Extent
from slimgrad.storage.schedule import AHEAD, Schedule
from slimgrad.storage.worker import Worker

IDLE, QUEUED, RUNNING = range(3)  # of a read ahead
_OWNER = "_slimgrad_owner"  # attribute of a tensor over a slot's bytes


class Spilled:
    """Bytes that are on their way to disk, or there. Like a Slot, it owns them."""

    __slots__ = ("__weakref__", "_ahead", "_extent", "_loaded", "_number", "_source", "_tier", "nbytes")

    def __init__(self, tier: Tier, source: Slot | torch.Tensor) -> None:
        self._tier = tier
        self._source: Slot | torch.Tensor | None = source
        self._extent: Extent | None = None
        self._loaded: torch.Tensor | None = None
        self._ahead = IDLE
        self.nbytes = source.nbytes
        self._number = tier.schedule.put(self)

    @property
    def payload(self) -> torch.Tensor:
        """The bytes, for as long as this very tensor lives; memory of others or fresh, they are only to be read."""
        own = self.take()
        return own if own is not None else self._resident()

    def take(self) -> torch.Tensor | None:
        """Return the bytes in memory of the caller's own; None while they have not left memory."""
        self._tier.read_after(self._number)
        if self._source is not None or self._extent is None:
            return None
        loaded = self._take_loaded(self._extent)
        return loaded if loaded is not None else self._tier.load(self._extent)

    @property
    def is_in_memory(self) -> bool:
        """Whether the bytes have not left, or could not."""
        return self._source is not None

    def store(self) -> None:
        """Write the bytes and let go of the source. Called by the worker."""
        source = self._source
        if source is not None:
            self._extent = self._tier.save(source)
            if self._extent is not None:
                self._source = None

    def load_ahead(self) -> None:
        """Read the bytes before they are asked for. Called by the worker."""
        extent = self._extent
        with self._tier.worker.changed:
            if self._ahead != QUEUED or extent is None:
                return
            self._ahead = RUNNING
        try:
            self._loaded = self._tier.load(extent)
        finally:
            self._ahead = IDLE  # an error is raised again by whoever needs the bytes

    def want_ahead(self) -> bool:
        """Return whether a read ahead is to be queued, and note that it is."""
        if self._source is not None or self._loaded is not None or self._ahead != IDLE:
            return False
        self._ahead = QUEUED
        return True

    def peek(self) -> torch.Tensor:
        """Return the bytes without a word to the schedule: this is not the read that backward makes."""
        return self._resident()

    def _resident(self) -> torch.Tensor:
        source = self._source
        if source is None:  # written between two looks
            assert self._extent is not None
            return self._tier.load(self._extent)
        if not isinstance(source, Slot):
            return source
        payload = source.payload
        setattr(payload, _OWNER, source)  # the worker may let go of the slot while somebody reads this
        return payload

    def _take_loaded(self, extent: Extent) -> torch.Tensor | None:
        worker = self._tier.worker
        with worker.changed:
            if self._ahead == QUEUED:
                self._ahead = IDLE  # not begun: reading it here is as fast
        if self._ahead == RUNNING and extent.file.fd >= 0:
            worker.wait_for(lambda: self._ahead != RUNNING)
        loaded, self._loaded = self._loaded, None
        self._tier.n_ahead += loaded is not None
        return loaded


class Tier:
    """A Disk, the worker that writes and reads ahead, and the schedule."""

    def __init__(self, disk: Disk, buffers: Buffers, worker: Worker, n_ahead: int = AHEAD) -> None:
        self.disk, self.buffers, self.worker = disk, buffers, worker
        self.schedule = Schedule(n_ahead)
        self.problem = ""  # why bytes stay in memory that should have left
        self._is_broken = False
        self._was_told = False
        self.n_loaded = self.n_ahead = 0  # extents read, and payloads that were there when they were asked for

    def spill(self, source: Slot | torch.Tensor) -> Spilled:
        """Return what owns the bytes from now on. May wait; see Note [Back-pressure] in worker.py."""
        spilled = Spilled(self, source)
        if self.worker.is_own_thread:
            spilled.store()
        elif not self._is_broken and not self.worker.submit(spilled, Spilled.store, source.nbytes):
            self.fail("the thread that writes has died")
        self.tell()
        return spilled

    def save(self, source: Slot | torch.Tensor) -> Extent | None:
        """Return the extent that holds the bytes now, or None and note the problem."""
        if self._is_broken:
            return None
        try:
            return self.disk.write(source.payload if isinstance(source, Slot) else source)
        except StorageFull as error:  # room may come back when others die
            self.problem = self.problem or str(error)
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
        return None

    def load(self, extent: Extent) -> torch.Tensor:
        """Return the bytes of an extent in a pooled buffer."""
        room = self.buffers.take(extent.nbytes, BLOCK)
        self.disk.read(extent, room)
        self.n_loaded += 1
        return room

    def read_after(self, number: int) -> None:
        """Note a read, and have the next ones read ahead."""
        for spilled in self.schedule.read(number):
            if spilled.want_ahead():
                self.worker.hurry(spilled, Spilled.load_ahead)

    def begin_step(self) -> None:
        """Learn the order of the last step's reads."""
        self.schedule.begin()
        self.tell()

    def fail(self, why: str) -> None:
        """Give the disk up: from now on everything stays in memory."""
        self._is_broken, self.problem = True, f"disk: expected bytes to be written, got: {why}"

    def tell(self) -> None:
        """Warn once, in the thread of whoever trains."""
        if self.problem and not self._was_told and not self.worker.is_own_thread:
            self._was_told = True
            warnings.warn(f"activations stay in memory that should be swapped. {self.problem}", stacklevel=2)

    def close(self) -> None:
        """Let go of file and thread; what was spilled can still be read."""
        self.worker.close()
        self.disk.close()
