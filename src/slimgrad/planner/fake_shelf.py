"""A shelf without values: what slimgrad's own engine would store, in bytes only.

A session on this shelf runs unchanged on fake tensors: roles, sharing, plans and the order of reads are the engine's
own. Instead of coding, bytes are counted; instead of decoding, a fake tensor is handed out. The pool behaves as the
heap does: coded bytes and buffers lie in one piece of memory, which stays touched until the step ends.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from slimgrad.codecs import Codec
from slimgrad.coder import Coder
from slimgrad.ledger import Ledger
from slimgrad.planner.rates import Rates
from slimgrad.policy import DISK, Plan
from slimgrad.roles import Need, Role
from slimgrad.saved import Part, Saved, Stored
from slimgrad.shelf import Shelf
from slimgrad.storage.heap import WARM
from slimgrad.storage.pages import HUGE
from slimgrad.storage.schedule import Schedule


@dataclass(slots=True)
class Item:
    """One storage as it was put away, in the order of the forward; born and died count operators."""

    path: str
    number: int
    role: str
    nbytes: int
    stored: int
    codec: str
    born: int = 0
    died: int = 0


class Pool:
    """Counts what the heap would hold: now, and at most since the last step."""

    def __init__(self) -> None:
        self.now = self.high = 0
        self.clock = 0  # operators so far
        self._is_making = False  # a buffer, which operators see before it is noted
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @property
    def touched(self) -> int:
        """Bytes that are resident: whole huge pages, as far as the pool ever reached in this step."""
        return -(-self.high // HUGE) * HUGE

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        self.high = max(self.high, self.now)

    def remove(self, nbytes: int) -> None:
        self.now -= nbytes

    def take(self, nbytes: int) -> torch.Tensor:
        """Return a fake buffer to decode into."""
        self._is_making = True
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        self._is_making = False
        storage = buffer.untyped_storage()
        self._storages.add(storage)
        self.add(nbytes)
        weakref.finalize(storage, self.remove, nbytes).atexit = False
        return buffer

    def owns(self, storage: torch.UntypedStorage) -> bool:
        return self._is_making or storage in self._storages

    def trim(self) -> None:
        """End a step: pages that are not in use go back, except the first ones."""
        self.high = max(self.now, min(self.high, WARM))

    def close(self) -> None:
        """Nothing to give back."""


class FakeSlot:
    """So many bytes of the pool, as long as this lives."""

    payload = None

    def __init__(self, pool: Pool, nbytes: int, item: Item) -> None:
        self.nbytes = nbytes
        pool.add(nbytes)
        item.born = item.died = pool.clock
        weakref.finalize(self, _end, pool, nbytes, item).atexit = False


def _end(pool: Pool, nbytes: int, item: Item) -> None:
    pool.remove(nbytes)
    item.died = pool.clock


class FakeSpilled:
    """Bytes on disk: in the pool only while they are written, read ahead or decoded; see storage/tier.py."""

    payload = None

    def __init__(self, pool: Pool, nbytes: int, item: Item) -> None:
        self.nbytes = nbytes
        self._inside = _Inside(pool, nbytes)
        item.born = item.died = pool.clock
        weakref.finalize(self, _end, pool, 0, item).atexit = False
        weakref.finalize(self, self._inside.leave).atexit = False
        self.enter()

    def enter(self) -> None:
        """Take room in the pool."""
        self._inside.enter()

    def leave(self) -> None:
        """Give it back."""
        self._inside.leave()


class _Inside:
    """Whether bytes are in the pool now."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        self._pool, self._nbytes, self._is_inside = pool, nbytes, False

    def enter(self) -> None:
        if not self._is_inside:
            self._is_inside = True
            self._pool.add(self._nbytes)

    def leave(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self._pool.remove(self._nbytes)


class Silent:
    """A codec that writes nothing; the name and the promise are those of the real one."""

    def __init__(self, codec: Codec) -> None:
        self.name, self.is_lossless = codec.name, codec.is_lossless

    def decode(self, payload: Any, out: torch.Tensor) -> None:
        """Leave the values undefined."""


class FakeShelf(Shelf):
    """Counts what would be stored, by the predicted rates."""

    def __init__(self, rates: Rates) -> None:
        super().__init__(Ledger())
        self.pool = Pool()
        self.arena: Any = self.pool
        self.buffers: Any = self.pool
        self.freed = None  # nothing real is freed
        self.rates = rates
        self.items: list[Item] = []
        self._schedule = Schedule()
        self._numbers: weakref.WeakKeyDictionary[FakeSpilled, int] = weakref.WeakKeyDictionary()
        self._written: weakref.ref[FakeSpilled] | None = None  # the last one: the worker is busy with it

    def fetch(self, saved: Saved) -> torch.Tensor:
        """Return a fake of the tensor as it was saved; what is on disk comes back, and the next ones with it."""
        slot = None if saved.part is None else saved.part.slot
        if not isinstance(slot, FakeSpilled):
            return super().fetch(saved)
        for ahead in self._schedule.read(self._numbers[slot]):
            ahead.enter()
        if slot.nbytes == saved.stored.nbytes:  # as it is: read into the memory that is handed out
            slot.leave()
            return super().fetch(saved)
        slot.enter()
        tensor = super().fetch(saved)
        slot.leave()
        return tensor

    def end_step(self) -> None:
        """Learn the order of reads, too."""
        super().end_step()
        self._schedule.begin()

    def _spill(self, nbytes: int, item: Item) -> FakeSpilled:
        last = None if self._written is None else self._written()
        if last is not None:
            last.leave()
        spilled = FakeSpilled(self.pool, nbytes, item)
        self._numbers[spilled] = self._schedule.put(spilled)
        self._written = weakref.ref(spilled)
        return spilled

    def _part(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan, coder: Coder | None) -> Part | None:
        if plan.codec is None:
            return None
        numel = stored.nbytes // source.element_size()
        if role.need is Need.SIGN:
            self.pool.take(numel)  # the flags, before they are packed, count in the peak
        nbytes = self.rates.nbytes(stored.path, role, plan, numel, stored.nbytes)
        if nbytes >= stored.nbytes and plan.tier != DISK:
            return None
        item = Item(*stored.site, role.name, stored.nbytes, nbytes, plan.codec.name)
        self.items.append(item)
        slot = self._spill(nbytes, item) if plan.tier == DISK else FakeSlot(self.pool, nbytes, item)
        return Part(Silent(plan.codec), slot, plan)  # pyright: ignore[reportArgumentType]
