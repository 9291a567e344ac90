"""The contract every codec keeps, and the Blob it produces.

A codec turns the values of one tensor into bytes and back. It sees a flat, contiguous run of values in memory order
and knows nothing of shapes, roles or storage:

    encode(flat, bound, channels, room) -> payload      payload is room(n)[:used], one-dimensional uint8; None: keep raw
    decode(payload, out) -> None                        fills `out`: flat, of the original dtype and length
    ready(n, dtype, bound, channels) -> Ready | None    both of them for many tensors of one form, without tensors

Laws, each tested for every codec by tests/contracts.py:
- |x - decode(encode(x))| <= bound for every finite x, in real arithmetic; what cannot meet it is kept bit for bit,
  as are NaN and infinities. With `is_lossless`, every bit comes back.
- decode never reads outside the payload: whatever the bytes, it fills `out` or raises CorruptPayload.
- the same input gives the same bytes, whatever kernel runs and however many threads it uses.
- a payload that would not be smaller than the values is replaced by `raw` (see codecs.encode), so that
  blob.nbytes <= raw bytes + 64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch

Room = Callable[[int], torch.Tensor]  # room(n) -> at least n writable bytes, one-dimensional uint8

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})


class Bound(Protocol):
    """How exact a restored tensor has to be. The classes are in slimgrad.bounds; codecs only ask for eps."""

    @property
    def needs_rms(self) -> bool:
        """Whether eps depends on the RMS of the data."""
        ...

    def eps(self, rms: float) -> float:
        """Return the largest allowed |restored - original|; 0.0 means exact."""
        ...


class Channels(NamedTuple):
    """The channel of flat element i is (i // inner) % count, and element i - apart is its neighbour in a map."""

    count: int
    inner: int
    apart: int = 1


class Ready(NamedTuple):
    """A codec made ready for values of one form: what follows from that is worked out, and memory is told by address.

    The bytes are those of encode() and decode(). `encode(values, room, edges)` returns how many of `capacity` bytes it
    used, 0 where the values had better stay raw; `decode(payload, nbytes, values)` fills the values or raises
    CorruptPayload. `edges` is the address of a float per channel, or 0: see csrc/slimgrad.h.
    """

    capacity: int
    encode: Callable[[int, int, int], int]
    decode: Callable[[int, int, int], None]


class Codec:
    """One way to write values as bytes. Codecs are values: equal configuration means equal codec."""

    name: ClassVar[str]
    tag: ClassVar[int]  # the codec's byte in a blob header; never reused
    is_lossless: ClassVar[bool]
    dtypes: ClassVar[frozenset[torch.dtype]]

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        """Return the payload, a prefix of what `room` gave; None when the values had better stay raw."""
        raise NotImplementedError

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        """Fill `out` from the payload."""
        raise NotImplementedError

    def ready(self, n: int, dtype: torch.dtype, bound: Bound | None, channels: Channels | None) -> Ready | None:
        """Return the codec for `n` values of this dtype; None where it codes tensors only."""
        return None

    def eps_of(self, payload: torch.Tensor) -> float:
        """Return the largest error that the payload's values can have; lossy codecs record it."""
        return 0.0


@dataclass(slots=True)
class Blob:
    """One encoded tensor: everything needed to restore it, on its own."""

    codec: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]  # dimensions from slowest to fastest in memory
    payload: torch.Tensor  # uint8, one-dimensional
    eps: float = 0.0  # the largest error a restored value can have

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def nbytes(self) -> int:
        """Bytes that have to be kept: the header of docs/format.md and the payload."""
        return header_nbytes(self.shape, self.order) + self.payload.numel()


def header_nbytes(shape: tuple[int, ...], order: tuple[int, ...]) -> int:
    """Return the size of the header that `codecs.wire` writes for this shape and order."""
    dims = sum(max(1, -(-size.bit_length() // 7)) for size in shape)
    return 8 + dims + (0 if order == tuple(range(len(order))) else len(order))
