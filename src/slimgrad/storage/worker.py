"""One thread that works beside training: what forward hands over, and what backward will want next.

    worker.submit(thing, work, nbytes)     work(thing), some time; waits while too many bytes are waiting already
    worker.hurry(thing, work)              the same, before everything that was submitted
    worker.wait_for(is_done)               until a condition holds that work makes true; False if it never will
    worker.close()                         the thread ends; what was not begun is not done

Note [Back-pressure]. What is submitted stays in memory until it is done. The queue therefore holds at most `capacity`
bytes, or one thing that is larger: whoever produces faster than the thread works, waits.

Note [Nothing depends on it]. Work must leave the thing usable if it is never done or fails: things are held weakly and
skipped when they die, an exception is the thing's own affair, and a thread that dies is noticed by whoever waits. A
forked child has no such thread; there, nothing is queued and a new thread starts with the first submit().
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

CAPACITY = 1 << 27  # bytes; enough for two or three of the largest tensors of most models
POLL = 0.2  # seconds after which a waiter looks whether the thread still lives

Job = tuple["weakref.ref[Any]", Callable[[Any], None], int]


class _Queue:
    """What the thread and its owner share. The thread holds this and not the Worker, which can so be forgotten."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: deque[Job] = deque()
        self.urgent: deque[Job] = deque()
        self.nbytes = 0  # in `jobs`, and in the job that runs
        self.is_busy = False
        self.is_closed = False


class Worker:
    """A daemon thread, started when it is first needed."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.begin()
        _WORKERS.add(self)

    def begin(self) -> None:
        """Forget queue and thread. In a forked child the thread is gone, and may have died with the lock."""
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self._at_end = weakref.finalize(self, _close, self._queue)

    def submit(self, thing: Any, work: Callable[[Any], None], nbytes: int) -> bool:
        """Queue work on a thing of this size; False where the thread has died: do without. Note [Back-pressure]."""
        queue = self._queue
        with queue.changed:
            while queue.nbytes and queue.nbytes + nbytes > self.capacity and self._lives():
                queue.changed.wait(POLL)
            if not self._lives():
                return False
            queue.nbytes += nbytes
            queue.jobs.append((weakref.ref(thing), work, nbytes))
            queue.changed.notify_all()
        return True

    def hurry(self, thing: Any, work: Callable[[Any], None]) -> bool:
        """Queue work before everything that was submitted."""
        queue = self._queue
        with queue.changed:
            if self._lives():
                queue.urgent.append((weakref.ref(thing), work, 0))
                queue.changed.notify_all()
                return True
        return False

    def wait_for(self, is_done: Callable[[], bool]) -> bool:
        """Return True once `is_done()` holds, False if the thread has died before."""
        queue = self._queue
        with queue.changed:
            while not is_done():
                if not self._lives():
                    return False
                queue.changed.wait(POLL)
        return True

    def drain(self) -> bool:
        """Wait until nothing is queued; False if the thread has died before."""
        queue = self._queue
        return self._thread is None or self.wait_for(lambda: not (queue.jobs or queue.urgent or queue.is_busy))

    @property
    def changed(self) -> threading.Condition:
        """Held while the state of a thing changes that others wait for; notified after every piece of work."""
        return self._queue.changed

    @property
    def is_own_thread(self) -> bool:
        """Whether this is asked by the worker itself."""
        return self._thread is threading.current_thread()

    @property
    def nbytes_waiting(self) -> int:
        return self._queue.nbytes

    def close(self) -> None:
        """End the thread after what it does now. submit() starts another."""
        self._at_end()
        self.begin()

    def _lives(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._queue,), name="slimgrad", daemon=True)
            self._thread.start()
        return self._thread.is_alive()


def _work(queue: _Queue) -> None:
    while True:
        with queue.changed:
            while not (queue.jobs or queue.urgent or queue.is_closed):
                queue.changed.wait()
            if queue.is_closed:
                return
            reference, work, nbytes = (queue.urgent or queue.jobs).popleft()
            queue.is_busy = True
        thing = reference()
        try:
            if thing is not None:
                work(thing)
        except Exception:  # Note [Nothing depends on it]
            pass
        finally:
            del thing
            with queue.changed:
                queue.nbytes -= nbytes
                queue.is_busy = False
                queue.changed.notify_all()


def _close(queue: _Queue) -> None:
    with queue.changed:
        queue.is_closed = True
        queue.changed.notify_all()


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


def _begin_in_child() -> None:
    for worker in list(_WORKERS):
        worker._at_end.detach()
        worker.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
