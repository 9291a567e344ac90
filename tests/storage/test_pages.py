"""Pages: untouched memory costs nothing, touched memory is counted, and it really goes back."""

from __future__ import annotations

import gc
import sys

import pytest

from slimgrad.report.memory import resident_now
from slimgrad.storage import pages
from slimgrad.storage.pages import HUGE, Pages, round_up

MIB = 1 << 20
SLACK = 8 * MIB  # of the resident set that others in this process may move


def resident() -> int:
    gc.collect()
    now = resident_now()
    if now is None:
        pytest.skip("this system does not tell the resident set")
    return now


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_round_up(nbytes: int, expected: int) -> None:
    assert round_up(nbytes, 64) == expected


def test_untouched_memory_costs_nothing() -> None:
    before = resident()
    part = Pages(1 << 32)
    assert part.size == 1 << 32
    assert resident() - before < SLACK


def test_memory_goes_back_with_the_last_reference() -> None:
    part = Pages(256 * MIB)
    part.values[: 100 * MIB] = 1
    view = part.values[MIB : 2 * MIB]
    full = resident()
    del part
    assert (view == 1).all()
    del view
    assert full - resident() > 100 * MIB - SLACK


def test_forgotten_pages_go_back_and_the_others_stay() -> None:
    part = Pages(256 * MIB)
    part.values[: 100 * MIB] = 1
    part.touch(100 * MIB)
    full = resident()
    part.forget(20 * MIB - 1)
    assert part.touched == 20 * MIB
    assert full - resident() > 80 * MIB - SLACK
    assert (part.values[: 20 * MIB] == 1).all()
    assert not part.values[20 * MIB : 100 * MIB].any()


def test_touched_only_grows_and_is_whole_pages() -> None:
    part = Pages(64 * MIB)
    part.touch(5)
    part.touch(1)
    assert part.touched in (4096, 16384, 65536, HUGE)
    part.touch(64 * MIB)
    part.touch(1)
    assert part.touched == 64 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages are there")
def test_what_was_written_is_found() -> None:
    part = Pages(64 * MIB)
    part.touch_written(64 * MIB)
    assert part.touched == 0
    part.values[: 5 * MIB] = 1
    part.touch_written(64 * MIB)
    assert 5 * MIB <= part.touched <= 5 * MIB + HUGE


def test_written_counts_whole_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_libc", lambda: None)
    part = Pages(64 * MIB)
    part.touch_written(10 * MIB)
    assert part.touched == 10 * MIB


def test_address_space_is_reserved_sparingly_where_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.default_nbytes() in (1 << 36, 1 << 28)
    monkeypatch.setattr(pages, "_counts_address_space", lambda: True)
    assert pages.default_nbytes() == 1 << 28


def test_works_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_ask_for_huge_pages", lambda memory: False)
    part = Pages(64 * MIB)
    part.touch(1)
    assert part.touched < HUGE
