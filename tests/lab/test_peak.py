"""Peak memory of the arms, in fresh processes: slim is below plain by both measures, and static memory is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from slimgrad.lab import peak
from slimgrad.lab.arms import Material, Setup

SETUP = Setup("tiny_nets:cnn", batch=64, threads=1)  # about 180 MB of activations


@pytest.fixture(autouse=True)
def _same_conditions(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))  # else glibc keeps freed tensors, by chance more or less


@pytest.mark.slow
def test_slim_is_lighter_by_both_measures():
    weights = peak.measure(SETUP, kinds=("live", "resident"))
    for kind in weights:
        plain, slim, checkpoint = (weights[kind][arm] for arm in ("plain", "slim", "checkpoint"))
        assert slim.beyond_static < 0.75 * plain.beyond_static, kind
        assert checkpoint.beyond_static < plain.beyond_static, kind
        assert slim.saved_ratio > 4
        assert plain.saved_ratio is None
    live, resident = weights["live"]["plain"], weights["resident"]["plain"]
    assert live.peak_at
    assert resident.beyond_static > 0.9 * live.beyond_static  # the same tensors, and what kernels need besides


def test_huge_pages_are_a_matter_of_the_process(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        peak, "in_fresh_process", lambda *words, **environment: seen.update({words[-1]: environment}) or "{}"
    )
    monkeypatch.setattr(peak, "Weight", lambda: None)
    for kind in peak.KINDS:
        peak.measure_one(SETUP, "slim", kind)
    assert seen == {"live": {}, "resident": {}, "huge": {"THP_MEM_ALLOC_ENABLE": "1"}}


def test_static_memory_is_counted_once():
    setup = Setup("tiny_nets:cnn", batch=1, size=16)
    weight = peak.measure_one(setup, "plain", "live")
    sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in Material(setup).static()}
    assert weight.static == sum(sizes.values())
    assert weight.peak > weight.static
