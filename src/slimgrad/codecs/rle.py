"""rle: runs of zero words in one byte each, the words between them as they are. The simple rival of zvc in cDMA.

Lossless for every dtype. Better than zvc only where zeros cluster.
"""

from __future__ import annotations

import torch

from slimgrad import kernels
from slimgrad.codecs.words import WordCodec


class Rle(WordCodec):
    name = "rle"
    tag = 5

    def pack(self, words: torch.Tensor, payload: torch.Tensor) -> int:
        return kernels.active().pack_rle(words, payload)

    def unpack(self, payload: torch.Tensor, words: torch.Tensor) -> bool:
        return kernels.active().unpack_rle(payload, words)
