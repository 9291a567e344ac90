"""What the ctypes layer does with what the library answers."""

from __future__ import annotations

import pytest
import torch

from slimgrad.errors import CorruptPayload, InternalError
from slimgrad.kernels import native
from slimgrad.kernels.reference.nested_choice import NestedWish

WISH = NestedWish(1, 1, False, False, 0.5, 0.0)


def test_too_little_room_is_our_mistake_and_says_so():
    with pytest.raises(InternalError, match="1000 values into 10 bytes"):
        native.pack_nested(torch.randn(1000), WISH, torch.empty(10, dtype=torch.uint8))


def test_a_payload_of_another_length_is_refused():
    out = torch.empty(8192, dtype=torch.uint8)
    used = native.pack_nested(torch.randn(1000), WISH, out)
    with pytest.raises(CorruptPayload, match="not a payload of 40000 values"):
        native.unpack_nested(out[:used], torch.empty(40_000))


def test_nothing_is_written_beyond_the_room():
    out = torch.full((8192,), 0xAA, dtype=torch.uint8)
    used = native.pack_nested(torch.randn(1000), WISH, out[:4096])
    assert 0 < used < 4096
    assert bool((out[4096:] == 0xAA).all())


def test_nothing_is_written_beyond_the_values():
    out = torch.empty(8192, dtype=torch.uint8)
    used = native.pack_nested(torch.randn(1001), WISH, out)
    restored = torch.full((1100,), 7.0)
    native.unpack_nested(out[:used], restored[:1001])
    assert bool((restored[1001:] == 7.0).all())
