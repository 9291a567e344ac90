"""zvc: zero-value compression as in cDMA. A bit per word says whether it is zero; the other words follow, packed.

Lossless for every dtype, since zero means all bits zero. With b bits per value and density d the ratio is
b / (1 + b*d), less the index of 2 bytes per 16,384 words.
"""

from __future__ import annotations

import torch

from slimgrad import kernels
from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.codecs.words import not_written_by, words_of


class Zvc(Codec):
    name = "zvc"
    tag = 4
    is_lossless = True
    dtypes = frozenset()  # any

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        nbytes = flat.numel() * flat.element_size()
        payload = room(nbytes)[:nbytes]  # what needs more than the values themselves is not wanted
        used = kernels.active().pack_zvc(words_of(flat), payload)
        return payload[:used] if used >= 0 else None

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if not kernels.active().unpack_zvc(payload, words_of(out)):
            raise not_written_by(self.name, payload, out)
