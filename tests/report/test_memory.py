"""Memory: the peaks that are reported are the peaks that were."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from slimgrad.report import memory
from slimgrad.report.memory import LiveBytes, PeakMeter, reset_resident_peak, resident_now, resident_peak
from slimgrad.storage import Arena, Buffers, Heap

MIB = 1 << 20
has_proc = pytest.mark.skipif(resident_now() is None, reason="this system has no /proc/self/status")


def touch(nbytes: int) -> np.ndarray:
    return np.ones(nbytes, dtype=np.uint8)


@has_proc
def test_the_resident_set_follows_memory() -> None:
    before = resident_now()
    block = touch(64 * MIB)
    assert resident_now() - before > 56 * MIB
    del block
    assert resident_now() - before < 8 * MIB


@has_proc
def test_a_reset_peak_begins_at_the_present() -> None:
    touch(64 * MIB)
    high = resident_peak()
    if not reset_resident_peak():
        pytest.skip("this system does not let us reset the mark")
    assert resident_peak() < high - 48 * MIB
    assert resident_peak() >= resident_now() - 4 * MIB


def test_the_meter_sees_a_peak_that_is_gone() -> None:
    meter = PeakMeter()
    touch(64 * MIB)
    peak = meter.read()
    assert peak.resident is not None
    if peak.since == "attach":
        assert 56 * MIB < peak.resident - peak.resident_before < 80 * MIB
    assert peak.accelerator is None or peak.device is not None


def test_without_proc_there_is_still_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    known = resident_peak()
    monkeypatch.setattr(memory, "_status", lambda field: None)
    assert resident_now() is None
    fallback = resident_peak()
    assert fallback is None or fallback > known // 4


def test_live_bytes_counts_each_storage_once_while_it_lives() -> None:
    with LiveBytes() as live:
        x = torch.zeros(1000)
        view = x.view(10, 100)[:, 5:]
        assert live.now == 4000
        y = x + 1
        assert live.now == 8000
        del x, y
        assert live.now == 4000
        del view
        assert live.now == 0
        assert live.peak == 8000
        assert "add" in live.peak_at


def test_live_bytes_sees_what_existed_before_when_told_or_when_used() -> None:
    told, used, other = torch.zeros(100), torch.zeros(200), torch.zeros(400)
    with LiveBytes() as live:
        live.track(told)
        assert live.now == 400
        total = used.sum()
        assert live.now == 1200 + total.nbytes
    assert other.sum() == 0


def test_live_bytes_follows_a_storage_that_changes_its_size() -> None:
    with LiveBytes() as live:
        x = torch.zeros(100)
        x.resize_(1000)
        assert live.now == 4000
        x.untyped_storage().resize_(0)
        x.view(-1)
        assert live.now == 0


def test_live_bytes_of_a_training_step_are_those_of_the_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(50, 60), torch.nn.ReLU(), torch.nn.Linear(60, 10))
    x = torch.randn(100, 50)
    with LiveBytes() as live:
        live.track(x, *model.parameters())
        static = live.now
        loss = model(x).sum()
        assert live.now - static == 100 * 60 * 4 + 4  # relu's result and the loss; the rest is static or gone
        loss.backward()
        del loss
        gradients = sum(parameter.nbytes for parameter in model.parameters())
        assert live.now - static == gradients
        assert live.peak - static > gradients + 100 * 60 * 4


def test_a_new_peak_can_begin() -> None:
    with LiveBytes() as live:
        x = torch.zeros(1000)
        torch.zeros(5000)
        live.reset_peak()
        assert live.peak == x.nbytes
        torch.zeros(100)
        assert live.peak == 4400


def test_pooled_memory_counts_by_what_the_pool_holds() -> None:
    heap = Heap()
    arena, buffers = Arena(heap), Buffers(heap)
    slot = arena.keep(arena.room(10 * MIB).zero_(), 5 * MIB)
    with LiveBytes(lambda: arena.nbytes_touched + buffers.nbytes_held, heap.owns) as live:
        x = torch.zeros(1000)
        decoded = buffers.take(MIB).view(torch.float32)
        for _ in range(3):  # seen again and again, and never counted
            total = decoded.mul_(0).view(1024, 256) + 0
            del total
        slot.payload.view(-1)[:10] + 1
        assert live.now == x.nbytes
        assert live.peak == x.nbytes + MIB + heap.nbytes_touched
    gc.collect()
    assert live.now == x.nbytes


def test_live_bytes_does_not_count_tensors_without_memory() -> None:
    with LiveBytes() as live:
        real = torch.zeros(100)
        fake = torch.zeros(1_000_000, device="meta") + 1
    assert live.peak == real.nbytes < fake.nbytes
