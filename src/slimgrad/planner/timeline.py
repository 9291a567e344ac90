"""The peak of a step as a function of what is done with each of its tensors.

A FakeTensor run with everything coded says, operator by operator, what is live and how full the pool is (Moment), and
of every coded tensor when it was stored, when its original was gone, when it was read and when it died (Item). From
that the peak of any other choice follows by arithmetic:

    kept       counts from when the original would be gone, and needs no room in the pool
    made again counts while it is read; for a moment twice, with what it is made from
    coded      counts in the pool, and while it is read a second time, decoded
    on disk    the same, but coded bytes are in the pool only on their way: for one operator after they were stored,
               and from two reads ahead on (see fake_disk.py)

The pool does not shrink within a step, and part of it stays for the next (Note [What stays warm] in storage/heap.py).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slimgrad.planner.fake_run import Moment
from slimgrad.planner.fake_shelf import Item
from slimgrad.storage.heap import WARM
from slimgrad.storage.pages import HUGE, grants_huge_pages
from slimgrad.storage.schedule import AHEAD

KEEP, AGAIN, CODE, DISK = CHOICES = ("keep", "again", "code", "disk")
Site = tuple[str, int]
Choices = Mapping[Site, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tensor takes under each choice that there is for it: bytes of memory, and seconds per step."""

    nbytes: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Room:
    """How the pool takes memory: in pages of so many bytes, of which the first `warm` stay from step to step."""

    page: int
    warm: float
    floor: int = 0  # touched already

    @classmethod
    def of_system(cls, floor: int = 0) -> Room:
        return cls(HUGE, WARM, floor) if grants_huge_pages() else cls(mmap.PAGESIZE, math.inf, floor)

    def touched(self, levels: np.ndarray) -> np.ndarray:
        """Return the resident bytes at each operator of a step like the one before."""
        stays = max(self.floor, min(levels.max(initial=0.0), self.warm))
        return np.ceil(np.maximum(np.maximum.accumulate(levels), stays) / self.page) * self.page

    def decisive(self, levels: np.ndarray, moment: int) -> int | None:
        """Return the operator that decides how much is touched at this one; None where the past does."""
        so_far, stays = levels[: moment + 1].max(), min(levels.max(), self.warm)
        if max(so_far, stays) <= self.floor:
            return None
        return int((levels[: moment + 1] if so_far >= stays else levels).argmax())


class Timeline:
    """Lifetimes of the tensors of a step; rows of the tables are operators, columns are sites."""

    def __init__(self, items: Sequence[Item], moments: Sequence[Moment], room: Room | None = None) -> None:
        self.sites: list[Site] = list(dict.fromkeys((item.path, item.number) for item in items))
        self.room = room or Room.of_system()
        self._place = {site: number for number, site in enumerate(self.sites)}
        self._n = len(moments)
        self._live = np.array([moment.live for moment in moments], dtype=float)
        self._nbytes = np.zeros(len(self.sites))
        for item in items:
            self._nbytes[self._place[item.path, item.number]] = item.nbytes
        self._stored = self._table(items, lambda item: [(item.born, item.died)])
        self._kept = self._table(items, lambda item: [(item.gone, item.died)])
        self._read = self._table(items, lambda item: [(item.read, item.done)])
        self._making = self._table(items, lambda item: [(item.read - 1, item.read)] if item.read else [])
        windows = _moves(items)
        self._moving = self._table(items, lambda item: windows[id(item)])
        coded = np.zeros(self._n)
        for item in items:
            coded[item.born : item.died] += item.stored
        self._buffers = np.maximum([moment.pooled for moment in moments] - coded - self._read @ self._nbytes, 0.0)

    def _table(self, items: Sequence[Item], spans: Callable[[Item], list[tuple[int, int]]]) -> np.ndarray:
        table = np.zeros((self._n, len(self.sites)))
        for item in items:
            for start, end in spans(item):
                table[max(start, 0) : end, self._place[item.path, item.number]] = 1.0
        return table

    def peak(self, choices: Choices, costs: Mapping[Site, Cost]) -> int:
        """Return the predicted peak in bytes, static memory included."""
        live, levels = self._after(choices, costs)
        return int((live + self.room.touched(levels)).max())

    def at_peak(self, choices: Choices, costs: Mapping[Site, Cost]) -> dict[Site, tuple[float, float]]:
        """Return what counts in the peak, 1 or 0: a site's tensor if it is kept, and its bytes in the pool if not.

        Where the pool was made larger by an earlier step than this one needs, nothing in it counts.
        """
        live, levels = self._after(choices, costs)
        moment = int((live + self.room.touched(levels)).argmax())
        decisive = self.room.decisive(levels, moment)
        inside = np.zeros(len(self.sites)) if decisive is None else self._stored[decisive]
        found = zip(self.sites, self._kept[moment], inside, strict=True)
        return {site: (float(kept), float(pooled)) for site, kept, pooled in found if kept or pooled}

    def _after(self, choices: Choices, costs: Mapping[Site, Cost]) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes outside the pool, and those in it, after each operator."""
        chosen = [choices.get(site, CODE) for site in self.sites]
        kept, made = (self._nbytes * [choice == wish for choice in chosen] for wish in (KEEP, AGAIN))
        stored = np.array([self._pooled(site, choice, costs) for site, choice in zip(self.sites, chosen, strict=True)])
        on_disk = np.array([choice == DISK for choice in chosen], dtype=float)
        moved = on_disk * [costs[site].nbytes.get(CODE, 0) for site in self.sites]
        decoded = self._nbytes - kept - made
        live = self._live + self._kept @ kept + self._read @ made + 2 * (self._making @ made)
        return live, self._stored @ stored + self._moving @ moved + self._read @ decoded + self._buffers

    def _pooled(self, site: Site, choice: str, costs: Mapping[Site, Cost]) -> float:
        return 0.0 if choice == KEEP else float(costs[site].nbytes[choice])


def _moves(items: Sequence[Item]) -> dict[int, list[tuple[int, int]]]:
    """Return by item when its bytes are in memory on their way to the disk and back."""
    found = {id(item): [(item.born, item.born + 2)] for item in items}
    reads = sorted((item for item in items if item.read), key=lambda item: item.read)
    for number, item in enumerate(reads):
        found[id(item)].append((reads[max(number - AHEAD, 0)].read, item.read + 1))
    return found
