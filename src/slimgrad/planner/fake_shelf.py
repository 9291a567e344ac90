"""A shelf without values: what slimgrad's own engine would store, in bytes only.

A session on this shelf runs unchanged on fake tensors: roles, sharing, plans and the order of reads are the engine's
own. Instead of coding, bytes are counted; instead of decoding, a fake tensor is handed out. Coded bytes and buffers lie
in a heap without memory (fake_pool.py), what leaves goes to a disk without a file (fake_disk.py).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch

from slimgrad import recipes
from slimgrad.codecs import Codec, Raw
from slimgrad.ledger import Ledger
from slimgrad.planner.fake_disk import FakeTiers
from slimgrad.planner.fake_pool import Pool
from slimgrad.planner.rates import Rates
from slimgrad.policy import DISK, Plan
from slimgrad.roles import Need, Role
from slimgrad.saved import Part, Saved, Stored
from slimgrad.shelf import SAMPLE_EVERY, Shelf, flattened

GROWTH = 1.005  # of incompressible values: an encoder asks for that much before it knows better


@dataclass(slots=True)
class Item:
    """One storage as it was put away, in the order of the forward. Moments are operators of the step, counted."""

    path: str
    number: int
    role: str
    nbytes: int
    stored: int
    codec: str
    born: int = 0  # stored
    gone: int = 0  # the original
    read: int = 0  # first; 0: never
    done: int = 0  # the values that were decoded then
    died: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """A storage that can be made again; `source` is the site of what it is made from, None where that stays anyway."""

    source: tuple[str, int] | None
    n_calls: int
    nbytes: int


class FakeSlot:
    """So many bytes of the pool, as long as this lives."""

    payload = None

    def __init__(self, pool: Pool, nbytes: int, capacity: int) -> None:
        self.nbytes = nbytes
        self._slot = pool.reserve(nbytes, capacity)


class Silent:
    """A codec that writes nothing; the name and the promise are those of the real one."""

    def __init__(self, codec: Codec) -> None:
        self.name, self.is_lossless = codec.name, codec.is_lossless

    def decode(self, payload: Any, out: torch.Tensor) -> None:
        """Leave the values undefined."""


class SilentRaw(Raw):
    """The same for bytes as they are, which the tier hands out without a copy."""

    def decode(self, payload: Any, out: torch.Tensor) -> None:
        """Leave the values undefined."""


class FakeShelf(Shelf):
    """Counts what would be stored, by the predicted rates."""

    def __init__(self, rates: Rates, policy: object = None) -> None:
        super().__init__(Ledger())
        self.pool = Pool()
        self.arena: Any = self.pool
        self.buffers: Any = self.pool
        self.tiers = FakeTiers(self.pool, policy)
        self.freed = None  # nothing real is freed
        self.rates = rates
        self.items: list[Item] = []
        self.again: dict[tuple[str, int], Again] = {}
        self._item_of: weakref.WeakKeyDictionary[Any, Item] = weakref.WeakKeyDictionary()

    def fetch(self, saved: Saved) -> torch.Tensor:
        """Return a fake of the tensor as it was saved."""
        item = None if saved.part is None else self._item_of.get(saved.part.slot)
        if item is None or item.read:
            return super().fetch(saved)
        item.read = self.pool.clock
        values = super().fetch(saved)
        self._follow(values.untyped_storage(), item, "done")
        return values

    def put_rebuilt(
        self, path: str, storage: torch.UntypedStorage, role: Role, site: tuple[str, int] | None = None
    ) -> None:
        """Note from what it is made, too."""
        super().put_rebuilt(path, storage, role, site)
        recipe = getattr(storage, recipes.NOTE, None)
        if recipe is not None and site is not None:
            source, n_calls = recipe.root
            root = source.stored.site if isinstance(source, Saved) else None
            self.again[site] = Again(root, n_calls, storage.nbytes())

    def _part(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan) -> Part | None:
        """Do what Shelf._encode does, with bytes that are predicted."""
        if plan.codec is None:
            return None
        is_leaving = self.tiers.takes(plan, stored.nbytes)
        numel = stored.nbytes // source.element_size()
        nbytes = self.rates.nbytes(stored.path, role, plan, numel, stored.nbytes)
        is_raw = isinstance(plan.codec, Raw) or nbytes >= stored.nbytes
        if is_raw and not (is_leaving and (plan.tier == DISK or isinstance(plan.codec, Raw))):
            return None
        if is_raw and plan.tier == DISK:
            slot = self.tiers.disk().spill(flattened(stored, source).view(torch.uint8))
        else:
            slot = self._coded(stored, role, plan, numel, nbytes)
            slot = self.tiers.disk().spill(slot) if is_leaving and plan.tier == DISK else slot  # pyright: ignore[reportArgumentType]
        item = Item(*stored.site, role.name, stored.nbytes, slot.nbytes, plan.codec.name, self.pool.clock)
        self.items.append(item)
        self._item_of[slot] = item
        self._follow(slot, item, "died")
        self._follow(source.untyped_storage(), item, "gone")
        codec = SilentRaw() if is_raw else Silent(plan.codec)
        return Part(codec, slot, plan)  # pyright: ignore[reportArgumentType]

    def _coded(self, stored: Stored, role: Role, plan: Plan, numel: int, nbytes: int) -> FakeSlot:
        """Return the coded bytes, with the buffers that making them takes for a moment."""
        assert plan.codec is not None
        flags = self.pool.take(numel) if role.need is Need.SIGN else None
        slot = FakeSlot(self.pool, nbytes, int(stored.nbytes * GROWTH))
        del flags
        self._n_coded += 1
        if self._n_coded % SAMPLE_EVERY == 1 and not plan.codec.is_lossless:
            self.pool.take(stored.nbytes)
        return slot

    def _follow(self, thing: object, item: Item, moment: str) -> None:
        """Note on the item when the thing has died; as long as it lives, that it does now."""
        setattr(item, moment, self.pool.clock)
        weakref.finalize(thing, _note, self.pool, item, moment).atexit = False


def _note(pool: Pool, item: Item, moment: str) -> None:
    setattr(item, moment, pool.clock)
