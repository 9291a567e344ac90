"""Memory that malloc keeps goes back to the system."""

import sys

import pytest
import torch

from slimgrad.report.memory import resident_now
from slimgrad.storage.freed import EVERY, HUGE_PAGES, Freed

PIECE = 100_000  # bytes: below the size from which malloc maps memory of its own
N_PIECES = 640


def test_it_is_called_when_enough_has_passed(monkeypatch):
    calls = []
    monkeypatch.setattr(Freed, "trim", staticmethod(calls.append))
    freed = Freed(every=100)
    for nbytes in (60, 30, 20, 99):
        freed.passed(nbytes)
    assert calls == [0]
    freed.passed(1)
    assert calls == [0, 0]
    Freed(every=0).passed(1 << 40)
    assert calls == [0, 0]


@pytest.mark.parametrize(("word", "every"), [("1", EVERY), ("0", 0), ("", 0)])
def test_by_itself_only_where_huge_pages_make_it_cheap(monkeypatch, word, every):
    monkeypatch.setenv(HUGE_PAGES, word)
    assert Freed(None).every == every
    assert Freed(7).every == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, asks glibc")
def test_holes_below_something_that_stays_are_given_back():
    pieces = [torch.ones(PIECE, dtype=torch.uint8) for _ in range(N_PIECES)]
    stays = pieces[-1]
    del pieces
    before = resident_now()
    Freed(every=1).passed(1)
    assert before - resident_now() > PIECE * N_PIECES // 2
    assert stays.sum() == PIECE
