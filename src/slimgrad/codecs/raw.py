"""raw: the values as they are. What no other codec makes smaller is kept this way."""

from __future__ import annotations

import torch

from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.errors import CorruptPayload


class Raw(Codec):
    name = "raw"
    tag = 0
    is_lossless = True
    dtypes = frozenset()  # any

    def encode(self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room) -> torch.Tensor:
        nbytes = flat.numel() * flat.element_size()
        payload = room(nbytes)[:nbytes]
        payload.copy_(flat.view(torch.uint8))
        return payload

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        nbytes = out.numel() * out.element_size()
        if payload.numel() != nbytes:
            raise CorruptPayload(f"raw: expected {nbytes} bytes, got {payload.numel()}")
        out.view(torch.uint8).copy_(payload)
