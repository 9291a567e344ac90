"""mask: tensors of two values, such as booleans and dropout's {0, 1/(1-p)}, in one bit per value.

The two values are stored once, bit for bit. A tensor with a third value (or with a NaN of other bits) is left to `raw`.
"""

from __future__ import annotations

import torch

from slimgrad import kernels
from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.codecs.words import not_written_by, words_of


class Mask(Codec):
    name = "mask"
    tag = 2
    is_lossless = True
    dtypes = frozenset()  # any; complex128 is seen as pairs of words

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        words = words_of(flat)
        payload = room(2 * words.element_size() + (words.numel() + 7) // 8)
        used = kernels.active().pack_mask(words, payload)
        return payload[:used] if used >= 0 else None

    def encode_bits(
        self, bits: torch.Tensor, if_set: float, if_not: float, dtype: torch.dtype, room: Room
    ) -> torch.Tensor:
        """Return the payload of a tensor of that dtype with one value where a boolean is set and another where not."""
        start = 2 * dtype.itemsize - 2  # the two booleans that pack_mask writes make room for the two values
        payload = room(start + 2 + (bits.numel() + 7) // 8)
        used = kernels.active().pack_mask(bits.view(torch.uint8), payload[start:])
        words = [if_set if word else if_not for word in payload[start : start + 2].tolist()]
        payload[: start + 2] = torch.tensor(words, dtype=dtype).view(torch.uint8)
        return payload[: start + used]

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if not kernels.active().unpack_mask(payload, words_of(out)):
            raise not_written_by(self.name, payload, out)
