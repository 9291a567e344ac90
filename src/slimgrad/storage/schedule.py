"""In which order spilled bytes will be read: learnt from the last backward.

    number = schedule.put(thing)           things get numbers in the order of forward
    ahead = schedule.read(number)          which things are read next, the first first
    schedule.begin()                       a new step: what was read in the last one is the order now

As long as nothing was learnt, the last that was put is expected to be read first, as backward does. A step that puts
other things than the last one still works: a wrong guess costs time and never a value. Things are held weakly.
"""

from __future__ import annotations

import weakref
from typing import Any

AHEAD = 2  # reads: while one thing is decoded, the next can come, and the worker is not idle
MAX_THINGS = 1 << 18  # in a step; more than that is many forwards without a backward


class Schedule:
    """The order of reads, by number within a step."""

    def __init__(self, n_ahead: int = AHEAD) -> None:
        self.n_ahead = n_ahead
        self._things: list[weakref.ref[Any]] = []
        self._order: list[int] = []  # numbers in the order in which the last step read them
        self._place: dict[int, int] = {}  # of a number in that order
        self._reads: dict[int, None] = {}  # numbers that this step has read so far, in order

    def put(self, thing: Any) -> int:
        """Return the number of a thing that was spilled."""
        if len(self._things) == MAX_THINGS:
            self.begin()
        self._things.append(weakref.ref(thing))
        return len(self._things) - 1

    def read(self, number: int) -> list[Any]:
        """Note a read, and return what is alive of the next `n_ahead` that were not read yet."""
        self._reads[number] = None
        ahead: list[Any] = []
        if not self.n_ahead:
            return ahead
        for following in self._following(number):
            thing = self._things[following]() if following < len(self._things) else None
            if thing is not None and following not in self._reads:
                ahead.append(thing)
                if len(ahead) == self.n_ahead:
                    break
        return ahead

    def begin(self) -> None:
        """Begin a step: its things are numbered from 0 again."""
        if self._reads:
            self._order = list(self._reads)
            self._place = {number: place for place, number in enumerate(self._order)}
        self._things, self._reads = [], {}

    def _following(self, number: int) -> Any:
        place = self._place.get(number)
        return range(number - 1, -1, -1) if place is None else self._order[place + 1 :]
