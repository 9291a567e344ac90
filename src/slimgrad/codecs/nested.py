"""nested: unary bit planes under an error bound. Zeros stay zeros, signs stay exact, and it runs at memory speed.

    plane 0: |x| > 0     plane k: |x| > threshold k, only where plane k - 1 is set     restored: the middle of the bin

Three forms, chosen by the kernel (kernels/reference/nested_choice.py) and recorded in the payload (docs/format.md):
- a table of thresholds and values for the whole tensor, on the tensor's own number grid: no arithmetic, no rounding;
- steps per channel (`axis`) or finer than a unary code likes (Rice: low-order bits stored plain): (x - centre) / scale;
- `Nested(centred=True)`: a middle bin around the mean, per channel with `axis`, for dense data whose sign nobody needs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

import torch

from slimgrad import kernels
from slimgrad.codecs.base import FLOATS, Bound, Channels, Codec, Ready, Room
from slimgrad.errors import CorruptPayload
from slimgrad.kernels.reference.nested import BLOCK, MAX_LEVELS
from slimgrad.kernels.reference.nested_choice import HEADER, NestedWish

EPS_AT = 16  # where the header keeps eps
HEAD = HEADER.size + 4 * (2 * MAX_LEVELS + 1)  # bytes before the blocks, without what each channel adds


@dataclass(frozen=True, slots=True)
class Nested(Codec):
    """The nested code; `sampled` takes the RMS that scales a relative bound from a sample of the values."""

    name: ClassVar[str] = "nested"
    tag: ClassVar[int] = 1
    is_lossless: ClassVar[bool] = False
    dtypes: ClassVar[frozenset[torch.dtype]] = FLOATS

    centred: bool = False
    sampled: bool = False

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        wish = self._wish(bound, channels)
        out = room(capacity(flat.numel(), flat.nbytes, wish.channels))
        used = kernels.active().pack_nested(flat, wish, out)
        return out[:used] if used else None

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        kernels.active().unpack_nested(payload, out)

    def ready(self, n: int, dtype: torch.dtype, bound: Bound | None, channels: Channels | None) -> Ready | None:
        between_addresses = getattr(kernels.active(), "nested_between_addresses", None)
        if between_addresses is None:
            return None
        wish = self._wish(bound, channels)
        room = capacity(n, n * dtype.itemsize, wish.channels)
        return Ready(room, *between_addresses(n, dtype, wish, room))

    def _wish(self, bound: Bound | None, channels: Channels | None) -> NestedWish:
        assert bound is not None  # codecs.encode has checked
        rel, absolute = (bound.eps(1.0), 0.0) if bound.needs_rms else (0.0, bound.eps(1.0))
        count, inner, apart = channels or (1, 1, 1)
        return NestedWish(count, inner, self.centred, self.sampled, rel, absolute, apart)

    def eps_of(self, payload: torch.Tensor) -> float:
        if payload.numel() < HEADER.size:
            raise CorruptPayload(f"nested: expected a header of {HEADER.size} bytes, got {payload.numel()}")
        return struct.unpack_from("<f", payload.numpy().data, EPS_AT)[0]


def capacity(n: int, nbytes: int, channels: int) -> int:
    """Return the room that a payload of n values can need: header, tables, and every block raw."""
    return HEAD + 8 * channels - (-n // BLOCK) * 12 + nbytes
