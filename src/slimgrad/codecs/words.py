"""Values seen as words: integers with the same bits, which is how the lossless codecs compare and move them."""

from __future__ import annotations

import torch

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
