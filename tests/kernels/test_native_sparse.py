"""The wrappers of the lossless kernels: statuses become answers or errors, and threads change nothing."""

import contracts
import pytest
import torch
from kernel_sources import room, sparse_words

from slimgrad.errors import InternalError
from slimgrad.kernels import native_sparse
from slimgrad.kernels.reference.bits import ONE_WIDE, Span, Window


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("code", ["zvc", "rle"])
def test_blocks_stay_in_order_on_many_threads(code: str, threads: int) -> None:
    pack, unpack = getattr(native_sparse, f"pack_{code}"), getattr(native_sparse, f"unpack_{code}")
    words = sparse_words(16384 * 37 + 5, torch.int32, 0.5)
    alone, together = room(words.numel() * 5), room(words.numel() * 5)
    with contracts.torch_threads(1):
        used = pack(words, alone)
    for _ in range(5):
        with contracts.torch_threads(threads):
            assert pack(words, together) == used
            again = torch.empty_like(words)
            assert unpack(together[:used], again)
        assert torch.equal(together[:used], alone[:used])
        assert torch.equal(again, words)


def test_no_room_on_two_threads_ends() -> None:
    words = sparse_words(16384 * 20, torch.int32, 0.5)
    with contracts.torch_threads(2):
        assert native_sparse.pack_zvc(words, room(16384 * 4)) == -1


def test_a_refused_argument_is_our_own_mistake() -> None:
    values = torch.zeros(8, dtype=torch.int64)
    with pytest.raises(InternalError, match="status -3"):
        native_sparse.pack_bits(values, 64, room(64))
    with pytest.raises(InternalError, match="status -3"):
        native_sparse.unpack_bits(room(8), 0, values)
    impossible = Window((ONE_WIDE, ONE_WIDE, Span(0, 1, 1, 1, 0, 1)), 1)
    with pytest.raises(InternalError, match="status -3"):
        native_sparse.pack_window(values, impossible, 1, room(64))
    with pytest.raises(InternalError, match="status -3"):
        native_sparse.unpack_zvc(room(64), torch.zeros(2, dtype=torch.complex128))
