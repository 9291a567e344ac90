"""Values seen as words: integers with the same bits, which is how the lossless codecs compare and move them.

`WordCodec` is what zvc and rle are but for their kernels.
"""

from __future__ import annotations

import torch

from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.errors import CorruptPayload

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes; the sign of a word means nothing


def words_of(flat: torch.Tensor) -> torch.Tensor:
    """Return the values as words of their size without a copy; a complex128 becomes two words."""
    return flat.view(WORDS[min(flat.element_size(), 8)])


def not_written_by(codec: str, payload: torch.Tensor, out: torch.Tensor) -> CorruptPayload:
    """Return the error for bytes that no encoder writes for values like these."""
    return CorruptPayload(
        f"{codec}: expected the bytes of {out.numel()} values of {out.dtype}, got {payload.numel()} bytes that are not"
    )


class WordCodec(Codec):
    """A lossless codec of words that its kernels write, if they need no more bytes than the values have."""

    is_lossless = True
    dtypes = frozenset()  # any

    def pack(self, words: torch.Tensor, payload: torch.Tensor) -> int:
        """Write the words into `payload` and return the bytes used; negative when they do not fit."""
        raise NotImplementedError

    def unpack(self, payload: torch.Tensor, words: torch.Tensor) -> bool:
        """Fill `words` from the payload; False when no `pack` wrote it."""
        raise NotImplementedError

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        nbytes = flat.numel() * flat.element_size()
        payload = room(nbytes)[:nbytes]  # what needs more than the values themselves is not wanted
        used = self.pack(words_of(flat), payload)
        return payload[:used] if used >= 0 else None

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if not self.unpack(payload, words_of(out)):
            raise not_written_by(self.name, payload, out)
