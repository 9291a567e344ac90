"""zvc: zero-value compression as in cDMA. A bit per word says whether it is zero; the other words follow, packed.

Lossless for every dtype, since zero means all bits zero. With b bits per value and density d the ratio is
b / (1 + b*d), less the index of 2 bytes per 16,384 words.
"""

from __future__ import annotations

import torch

from slimgrad import kernels
from slimgrad.codecs.words import WordCodec


class Zvc(WordCodec):
    name = "zvc"
    tag = 4

    def pack(self, words: torch.Tensor, payload: torch.Tensor) -> int:
        return kernels.active().pack_zvc(words, payload)

    def unpack(self, payload: torch.Tensor, words: torch.Tensor) -> bool:
        return kernels.active().unpack_zvc(payload, words)
