"""The shelf: coded into the arena, decoded into buffers, once for readers that follow each other."""

from __future__ import annotations

import pytest
import torch

from slimgrad import Compress, Exact, Relative
from slimgrad.ledger import Ledger
from slimgrad.roles import Comparison, Need, Role, flag_role
from slimgrad.saved import Saved, Stored
from slimgrad.shelf import Shelf

VALUES = Role("conv input", Need.VALUES)
SIGN = flag_role("relu result", Comparison.NOT_BELOW, 0.0, float("inf"), torch.float32)


@pytest.fixture
def shelf():
    shelf = Shelf(Ledger())
    yield shelf
    shelf.close()


def put(shelf, x, role, bound):
    stored = Stored(x, x.untyped_storage(), ("layer", 1))
    shelf.put(stored, x, role, Compress().plan(role, x, bound))
    return stored, Saved(stored, x, role.need is Need.SIGN)


def test_values_come_back_within_the_bound(shelf):
    x = torch.relu(torch.randn(4, 8, 32, 32)).to(memory_format=torch.channels_last)
    stored, saved = put(shelf, x, VALUES, Relative(0.5))
    again = shelf.fetch(saved)
    rms = x[x > 0].square().mean().sqrt()
    assert again.stride() == x.stride()
    assert float((again - x).abs().max()) <= 0.55 * float(rms), "the RMS is that of a sample"
    assert stored.nbytes_held * 10 < x.nbytes


def test_signs_are_one_bit(shelf):
    x = torch.relu(torch.randn(50_000))
    stored, saved = put(shelf, x, SIGN, Relative(0.5))
    assert torch.equal(shelf.fetch(saved) > 0, x > 0)
    assert stored.nbytes_held < x.nbytes / 30


def test_what_cannot_be_coded_is_kept_with_its_reason(shelf):
    x = torch.randn(5000)
    stored, _ = put(shelf, x, VALUES, Exact())
    assert stored.kept is not None
    assert stored.kept.data_ptr() == x.data_ptr()
    assert "exact" in str(shelf.ledger.snapshot()).lower()


def test_two_readers_decode_once_and_the_buffer_goes_with_the_last(shelf):
    x = torch.randn(50_000)
    stored, first = put(shelf, x, VALUES, Relative(0.5))
    second = Saved(stored, x, False)
    address = shelf.fetch(first).data_ptr()
    assert shelf.buffers.nbytes_live > 0, "held for the second reader"
    assert shelf.fetch(second).data_ptr() == address
    assert shelf.buffers.nbytes_live == 0


def test_what_is_held_makes_room_before_the_next_is_decoded(shelf):
    first_stored, first = put(shelf, torch.randn(50_000), VALUES, Relative(0.5))
    Saved(first_stored, torch.randn(50_000), False)
    _, second = put(shelf, torch.randn(50_000), VALUES, Relative(0.5))
    shelf.fetch(first)
    other = shelf.fetch(second)
    assert shelf.buffers.nbytes_live <= other.untyped_storage().nbytes() + 64


def test_coded_bytes_are_free_when_the_stored_dies(shelf):
    stored, saved = put(shelf, torch.randn(50_000), VALUES, Relative(0.5))
    assert shelf.arena.nbytes_live > 0
    del stored, saved
    assert shelf.arena.nbytes_live == 0
