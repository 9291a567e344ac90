"""Tiers: which tensors leave, what stays true while they are away, and code that is made beside training."""

from __future__ import annotations

import threading

import pytest
import torch

from slimgrad import CorruptPayload, Relative
from slimgrad.codecs import Nested, Raw
from slimgrad.policy import DISK, HOST, Plan, Swap
from slimgrad.storage import Arena, Buffers, Heap, Slot, Spilled
from slimgrad.tiers import Deferred, Form, Tiers, eps_of, restored

TO_DISK, TO_HOST = Plan(Raw(), tier=DISK), Plan(Raw(), tier=HOST)


@pytest.fixture
def heap():
    return Heap()


@pytest.fixture
def make(heap, tmp_path):
    made: list[Tiers] = []

    def tiers(**options) -> Tiers:
        arena, buffers = Arena(heap), Buffers(heap)
        made.append(Tiers(arena, buffers, Swap(**{"tier": "disk", "directory": tmp_path, **options})))
        return made[-1]

    yield tiers
    for one in made:
        one.close()


def values(n: int = 5000, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def form(x: torch.Tensor) -> Form:
    return Form(x.nbytes, x.dtype)


def test_nothing_leaves_without_a_tier(make):
    assert not make().takes(Plan(Raw()), 1 << 30)
    assert make().takes(TO_DISK, 1)


def test_a_share_leaves_those_saved_first(make):
    tiers = make(fraction=0.5)
    assert [tiers.takes(TO_DISK, 100) for _ in range(10)] == [True] * 10, "the first step does not know yet"
    for _ in range(3):
        tiers.begin_step()
        assert [tiers.takes(TO_DISK, 100) for _ in range(10)] == [True] * 5 + [False] * 5
    tiers.begin_step()
    tiers.begin_step()
    assert tiers.takes(TO_DISK, 450) and tiers.takes(TO_DISK, 100) and not tiers.takes(TO_DISK, 1)


def test_raw_values_go_to_disk_and_come_back_in_memory_of_their_own(make, heap):
    tiers, x = make(), values()
    spilled = tiers.move(x, TO_DISK)
    tiers.worker.drain()
    assert isinstance(spilled, Spilled) and not spilled.is_in_memory
    loaded = tiers.disk().n_loaded
    again = restored(Raw(), spilled, form(x), Buffers(heap))
    assert torch.equal(again, x) and again.untyped_storage().nbytes() == x.nbytes
    assert tiers.disk().n_loaded == loaded + 1


def test_raw_values_that_have_not_left_are_copied(make, heap):
    tiers, gate, x = make(), threading.Event(), values()
    tiers.worker.submit(tiers, lambda _: gate.wait(20), 1)
    spilled = tiers.move(x, TO_DISK)
    again = restored(Raw(), spilled, form(x), Buffers(heap))
    gate.set()
    assert torch.equal(again, x) and again.data_ptr() != x.data_ptr()


def test_bytes_of_another_size_are_an_error(make, heap):
    tiers = make()
    spilled = tiers.move(values(), TO_DISK)
    tiers.worker.drain()
    with pytest.raises(CorruptPayload, match="20000"):
        restored(Raw(), spilled, Form(16_000, torch.float32), Buffers(heap))


def test_the_host_of_a_cpu_is_the_arena(make, heap):
    tiers, x = make(tier="host"), values()
    slot = tiers.move(x, TO_HOST)
    assert isinstance(slot, Slot) and tiers.move(slot, TO_HOST) is slot
    assert torch.equal(restored(Raw(), slot, form(x), Buffers(heap)), x)
    assert any("without an accelerator" in remark for remark in tiers.remarks()) or torch.accelerator.is_available()
    assert tiers.sizes() == {}


def code(arena: Arena, x: torch.Tensor):
    codec = Nested()
    payload = codec.encode(x, Relative(0.5), None, arena.room)
    assert payload is not None
    return codec, arena.keep(payload, payload.numel())


def test_the_worker_codes_and_lets_go_of_the_original(make, heap):
    tiers, x, arena, threads = make(), values(), Arena(heap), []

    def encode():
        threads.append(threading.current_thread())
        return code(arena, x)

    deferred = tiers.later(encode, x)
    tiers.worker.drain()
    assert threads != [threading.current_thread()] and len(threads) == 1
    assert deferred.original is None and deferred.nbytes < x.nbytes / 4
    at_once = restored(*code(arena, x), form(x), Buffers(heap))
    assert torch.equal(restored(Raw(), deferred, form(x), Buffers(heap)), at_once), (
        "the code that was made, not the plan"
    )
    assert eps_of(Raw(), deferred) > 0


def test_whoever_is_first_codes_once_and_gets_the_same(make, heap):
    tiers, x, arena, gate, n = make(), values(), Arena(heap), threading.Event(), []
    tiers.worker.submit(tiers, lambda _: gate.wait(20), 1)
    deferred = tiers.later(lambda: n.append(1) or code(arena, x), x)
    early = restored(Raw(), deferred, form(x), Buffers(heap))
    assert not torch.equal(early, x), "coded, not the original: what is restored does not depend on timing"
    gate.set()
    tiers.worker.drain()
    assert n == [1]
    assert torch.equal(restored(Raw(), deferred, form(x), Buffers(heap)), early)


def test_what_no_code_makes_smaller_stays(make, heap):
    tiers, x = make(), values()
    deferred = tiers.later(lambda: None, x)
    tiers.worker.drain()
    assert deferred.nbytes == x.nbytes and eps_of(Nested(), deferred) == 0.0
    again = restored(Nested(), deferred, form(x), Buffers(heap))
    assert torch.equal(again, x) and again.data_ptr() != x.data_ptr()


def test_an_error_of_the_encoder_is_raised_to_the_reader(make, heap):
    tiers, x = make(), values()
    deferred = tiers.later(lambda: 1 / 0, x)  # type: ignore[arg-type]
    tiers.worker.drain()
    with pytest.raises(ZeroDivisionError):
        restored(Raw(), deferred, form(x), Buffers(heap))


def test_a_worker_that_died_is_done_without(make, monkeypatch, heap):
    tiers, x = make(), values()
    monkeypatch.setattr(tiers.worker, "submit", lambda *_: False)
    deferred = tiers.later(lambda: code(Arena(heap), x), x)
    assert isinstance(deferred, Deferred) and deferred.original is None
