"""index: max-pool indices, int64, as the offset inside the pooling window, in as few bits as the window needs.

    codecs.encode(indices, Index.of_pool(indices, x.shape[2:], kernel=3, stride=2, padding=1))      # 4 bits each

Without a window, `Index()` stores every index in the bits of the largest. Indices that are not inside their window are
stored that way too, and negative numbers are left to `raw`: the code is lossless whatever the configuration says.
The payload repeats the geometry, so decode needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slimgrad import kernels
from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.codecs.varint import read_varint, write_varint
from slimgrad.codecs.words import not_written_by
from slimgrad.errors import ConfigError, CorruptPayload
from slimgrad.kernels.reference.bits import ONE_WIDE, Span, Window

PLAIN, WINDOW = 0, 1  # the first byte of a payload; others are reserved
MAX_SIZE = 1 << 30  # of every number in the geometry, so that products of two fit 64 bits with room
MAX_INPUT = 1 << 31  # positions of the input; also of a window
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by number of dimensions


@dataclass(frozen=True, slots=True)
class Index(Codec):
    """Sizes are those of the 1 to 3 spatial dimensions, (depth, height,) width; `channels` lie inside them."""

    name = "index"
    tag = 3
    is_lossless = True
    dtypes = frozenset({torch.int64})

    input_size: tuple[int, ...] = ()
    output_size: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    channels: int = 1

    def __post_init__(self) -> None:
        per_dimension = self._per_dimension()
        lengths = {len(sizes) for sizes in per_dimension}
        if len(lengths) != 1 or not lengths <= {0, 1, 2, 3}:
            raise ConfigError(
                f"index expected all sizes for 1, 2 or 3 dimensions, got {per_dimension}; "
                "write Index.of_pool(indices, input_size, kernel, stride), or Index() for no window"
            )
        for *sizes, padding, dilation in zip(*per_dimension, strict=True):
            if min(*sizes, dilation) < 1 or padding < 0 or max(*sizes, padding, dilation) > MAX_SIZE:
                raise ConfigError(f"index expected sizes from 1 to {MAX_SIZE} and padding from 0, got {self}")
        if not 1 <= self.channels <= MAX_SIZE:
            raise ConfigError(f"index expected channels from 1 to {MAX_SIZE}, got {self.channels}")
        if max(math.prod(self.input_size), math.prod(self.kernel)) > MAX_INPUT:
            raise ConfigError(
                f"index expected at most {MAX_INPUT} positions in input and window, got {self}; use Index()"
            )

    @staticmethod
    def of_pool(
        indices: torch.Tensor,
        input_size: Sequence[int],
        kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
    ) -> Index:
        """Return the codec for the indices of a max-pool with these arguments, as torch.nn.functional takes them.

        The trailing dimensions of `indices` are the spatial ones. Indices in a layout that is neither contiguous nor
        channels_last get Index().
        """
        ndim = len(input_size)
        output_size = tuple(indices.shape[indices.dim() - ndim :])
        if indices.is_contiguous():
            channels = 1
        elif indices.dim() in CHANNELS_LAST and indices.is_contiguous(memory_format=CHANNELS_LAST[indices.dim()]):
            channels = indices.shape[1]
        else:
            return Index()
        if 0 in output_size or indices.numel() == 0:
            return Index()
        return Index(
            tuple(input_size),
            output_size,
            _each(kernel, ndim),
            _each(kernel if stride is None else stride, ndim),
            _each(padding, ndim),
            _each(dilation, ndim),
            channels,
        )

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        if flat.numel() == 0:
            return None
        payload = self._encode_window(flat, room) if self.kernel else None
        return _encode_plain(flat, room) if payload is None else payload

    def _encode_window(self, flat: torch.Tensor, room: Room) -> torch.Tensor | None:
        window = self._window()
        if flat.numel() % window.group:
            raise ConfigError(
                f"index expected a multiple of {window.group} values for output {self.output_size} and "
                f"{self.channels} channels, got {flat.numel()}; write Index.of_pool(indices, ...) with these indices"
            )
        nbits = _nbits(window.positions - 1)
        numbers = [number for span in zip(*self._per_dimension(), strict=True) for number in span]
        head = bytes([WINDOW, nbits, len(self.kernel)]) + b"".join(write_varint(n) for n in (*numbers, self.channels))
        payload = _room_after(head, flat.numel() * nbits, room)
        used = kernels.active().pack_window(flat, window, nbits, payload[len(head) :])
        return payload if used >= 0 else None

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        form, nbits = payload[:2].tolist() if payload.numel() >= 2 else (-1, 0)
        if form == PLAIN and 1 <= nbits <= 63:
            done = kernels.active().unpack_bits(payload[2:], nbits, out)
        elif form == WINDOW:
            codec, at = _read_geometry(payload)
            window = codec._window()
            fits = nbits == _nbits(window.positions - 1) and out.numel() % window.group == 0
            done = fits and kernels.active().unpack_window(payload[at:], window, nbits, out)
        else:
            done = False
        if not done:
            raise not_written_by(self.name, payload, out)

    def _per_dimension(self) -> tuple[tuple[int, ...], ...]:
        return (self.input_size, self.output_size, self.kernel, self.stride, self.padding, self.dilation)

    def _window(self) -> Window:
        spans = [Span(*numbers) for numbers in zip(*self._per_dimension(), strict=True)]
        depth, height, width = [ONE_WIDE] * (3 - len(spans)) + spans
        return Window((depth, height, width), self.channels)


def _encode_plain(flat: torch.Tensor, room: Room) -> torch.Tensor | None:
    """Return all values in the bits of the largest; None when one is negative."""
    low, high = (int(value) for value in flat.aminmax())
    if low < 0:
        return None
    head = bytes([PLAIN, _nbits(high)])
    payload = _room_after(head, flat.numel() * _nbits(high), room)
    kernels.active().pack_bits(flat, _nbits(high), payload[len(head) :])
    return payload


def _read_geometry(payload: torch.Tensor) -> tuple[Index, int]:
    """Return the codec that wrote a window payload, and where the offsets begin."""
    data = payload[: 3 + 19 * 9].numpy().tobytes()  # three bytes and at most 19 numbers
    ndim = data[2] if len(data) > 2 else 0
    if not 1 <= ndim <= 3:
        raise CorruptPayload(f"index: expected a window of 1, 2 or 3 dimensions, got {ndim}")
    numbers, at = [], 3
    for _ in range(6 * ndim + 1):
        number, at = read_varint(data, at)
        numbers.append(number)
    try:
        per_dimension = [tuple(numbers[k : 6 * ndim : 6]) for k in range(6)]
        return Index(*per_dimension, channels=numbers[-1]), at
    except ConfigError as error:
        raise CorruptPayload(f"index: {error}") from error


def _nbits(largest: int) -> int:
    return max(1, largest.bit_length())  # at least one, so that a short payload can never stand for a huge tensor


def _room_after(head: bytes, nbits: int, room: Room) -> torch.Tensor:
    """Return a payload that begins with `head` and has space for `nbits` bits."""
    nbytes = len(head) + (nbits + 7) // 8
    payload = room(nbytes)[:nbytes]
    payload[: len(head)] = torch.tensor(list(head), dtype=torch.uint8)
    return payload


def _each(value: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return a size per dimension, as torch reads a single number."""
    sizes = tuple(map(int, value)) if isinstance(value, Sequence) else (int(value),)  # numpy's numbers will do
    return sizes * ndim if len(sizes) == 1 else sizes
