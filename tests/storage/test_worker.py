"""Worker: beside the caller, within its bytes, and nobody waits for a thread that is gone."""

from __future__ import annotations

import os
import threading
import time

import pytest

from slimgrad.storage import Worker
from slimgrad.storage import worker as module


class Thing:
    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.may_go = threading.Event()

    def work(self) -> None:
        self.thread = threading.current_thread()

    def wait(self) -> None:
        self.thread = threading.current_thread()
        self.may_go.wait(20)

    def fail(self) -> None:
        raise ValueError("no")

    def wait_and_die(self) -> None:
        self.may_go.wait(20)
        raise SystemExit  # no Exception: the thread ends


@pytest.fixture
def worker():
    worker = Worker(capacity=100)
    yield worker
    worker.close()


def test_work_is_done_in_another_thread(worker):
    thing = Thing()
    assert worker.submit(thing, Thing.work, 10)
    assert worker.drain()
    assert thing.thread not in (None, threading.current_thread())
    assert worker.nbytes_waiting == 0


def test_what_is_urgent_comes_first(worker):
    first, done = Thing(), []
    worker.submit(first, Thing.wait, 1)
    worker.submit(worker, lambda _: done.append("submitted"), 1)
    worker.hurry(worker, lambda _: done.append("urgent"))
    first.may_go.set()
    worker.drain()
    assert done == ["urgent", "submitted"]


def test_a_producer_that_is_too_fast_waits(worker):
    first, second, third = Thing(), Thing(), Thing()
    worker.submit(first, Thing.wait, 60)
    worker.submit(second, Thing.work, 40)
    threading.Timer(0.3, first.may_go.set).start()
    start = time.perf_counter()
    worker.submit(third, Thing.work, 1)
    assert time.perf_counter() - start > 0.2
    assert first.may_go.is_set()


def test_one_thing_may_be_larger_than_the_queue(worker):
    thing = Thing()
    assert worker.submit(thing, Thing.work, 10**9)
    assert worker.drain()
    assert thing.thread is not None


def test_what_has_died_is_skipped_and_what_fails_stops_nobody(worker):
    first, last, done = Thing(), Thing(), []
    worker.submit(first, Thing.wait, 10)
    worker.submit(Thing(), done.append, 10)  # dead at once
    worker.submit(first, Thing.fail, 10)
    worker.submit(last, Thing.work, 10)
    first.may_go.set()
    worker.drain()
    assert not done and last.thread is not None and worker.nbytes_waiting == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_noticed(worker, monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.01)
    first, second = Thing(), Thing()
    worker.submit(first, Thing.wait_and_die, 90)
    worker.submit(second, Thing.work, 5)
    first.may_go.set()
    assert not worker.wait_for(lambda: second.thread is not None)
    assert not worker.submit(second, Thing.work, 90)
    assert not worker.hurry(second, Thing.work)


def test_a_closed_worker_ends_and_begins_again(worker):
    thing = Thing()
    worker.submit(thing, Thing.work, 1)
    worker.drain()
    worker.close()
    assert thing.thread is not None
    thing.thread.join(10)
    assert not thing.thread.is_alive()
    other = Thing()
    assert worker.submit(other, Thing.work, 1) and worker.drain() and other.thread is not thing.thread


def test_a_forgotten_worker_ends():
    thing, worker = Thing(), Worker()
    worker.submit(thing, Thing.work, 1)
    worker.drain()
    del worker
    assert thing.thread is not None
    thing.thread.join(10)
    assert not thing.thread.is_alive()


def test_a_child_has_a_thread_of_its_own(worker):
    thing = Thing()
    worker.submit(thing, Thing.wait, 100)
    pid = os.fork()
    if pid == 0:
        other = Thing()
        is_done = worker.submit(other, Thing.work, 100) and worker.drain() and other.thread is not None
        os._exit(0 if is_done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    thing.may_go.set()
    assert worker.drain()
