"""A disk tier without a disk: the session's own Tier decides what is in memory when; nothing is written or read.

Time does not pass in a fake run, so one thing has to be assumed: the worker is one tensor behind. A write is done when
the next one is handed over, and a read ahead at once. A disk that is slower than forward keeps more waiting, up to what
the worker's queue holds (Note [Back-pressure] in storage/worker.py).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from slimgrad.planner.fake_pool import Pool
from slimgrad.storage import Tier
from slimgrad.tiers import Tiers


class FakeExtent:
    """So many bytes of a file."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.file = nbytes, self
        self.fd = 0


class FakeDisk:
    """Takes everything and gives back nothing."""

    nbytes_peak = 0
    directory = ""

    def write(self, source: Any) -> FakeExtent:
        """Return where the bytes of a slot or tensor would be."""
        return FakeExtent(source.nbytes)

    def read(self, extent: FakeExtent, room: object) -> None:
        """Leave the values undefined."""

    def close(self) -> None:
        """Nothing to close."""


class OneBehind:
    """A worker that has done everything but what it was given last."""

    is_own_thread = False

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._last: tuple[weakref.ref[Any], Callable[[Any], None]] | None = None

    def submit(self, thing: Any, work: Callable[[Any], None], nbytes: int) -> bool:
        """Do what was waiting, and let this wait."""
        before, self._last = self._last, (weakref.ref(thing), work)
        if before is not None and (waiting := before[0]()) is not None:
            before[1](waiting)
        return True

    def hurry(self, thing: Any, work: Callable[[Any], None]) -> bool:
        """Do it at once."""
        work(thing)
        return True

    def close(self) -> None:
        """Forget what waits."""
        self._last = None


class FakeTiers(Tiers):
    """The tiers of a session on fake tensors."""

    def __init__(self, pool: Pool, policy: object) -> None:
        self._pool = pool
        super().__init__(pool, pool, policy)  # pyright: ignore[reportArgumentType]  it has what they ask for

    def disk(self) -> Tier:
        """Return a disk that holds nothing."""
        if self._disk is None:
            self._disk = Tier(FakeDisk(), self._pool, OneBehind())  # pyright: ignore[reportArgumentType]
        return self._disk
