"""A disk tier without a disk: the session's own Tier decides what is in memory when; nothing is written or read.

Time does not pass in a fake run, so it has to be assumed when the worker is done: with writes as with reads ahead,
after the operator that follows. A disk that is slower than forward keeps more waiting, up to what the worker's queue
holds (Note [Back-pressure] in storage/worker.py).
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


class Prompt:
    """A worker that has done after the next operator what it was given."""

    is_own_thread = False

    def __init__(self, pool: Pool) -> None:
        self.changed = threading.Condition()
        self._pool = pool

    def submit(self, thing: Any, work: Callable[[Any], None], nbytes: int = 0) -> bool:
        """Do it beside the next operator, if the thing is still there."""
        reference = weakref.ref(thing)

        def job() -> None:
            if (alive := reference()) is not None:
                work(alive)

        self._pool.beside.append(job)
        return True

    hurry = submit

    def close(self) -> None:
        """Nothing to end."""


class FakeTiers(Tiers):
    """The tiers of a session on fake tensors."""

    def __init__(self, pool: Pool, policy: object) -> None:
        self._pool = pool
        super().__init__(pool, pool, policy)  # pyright: ignore[reportArgumentType]  it has what they ask for

    def disk(self) -> Tier:
        """Return a disk that holds nothing."""
        if self._disk is None:
            self._disk = Tier(FakeDisk(), self._pool, Prompt(self._pool))  # pyright: ignore[reportArgumentType]
        return self._disk
