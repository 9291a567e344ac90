"""Values of few bits: masks, small integers, window offsets. Plain torch, the specification of csrc/bits.inc.

Bits fill bytes from the lowest up: value i of k bits takes bits i*k to i*k + k - 1 of the stream, its lowest first.
Unused bits of the last byte are zero, and the unpackers refuse anything else.

Every pack_* writes the start of `out` and returns the bytes used, or DOES_NOT_FIT when these values cannot be written
this way. Every unpack_* fills its output and returns True, or returns False when the bytes are not what pack_* writes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

DOES_NOT_FIT = -1
CHUNK = 1 << 16  # values per step of pack_bits: its work space is 8 bytes per bit


class Span(NamedTuple):
    """One dimension of a pooling window: output o looks at inputs o*stride - padding + c*dilation, 0 <= c < kernel."""

    input: int
    output: int
    kernel: int
    stride: int
    padding: int
    dilation: int


class Window(NamedTuple):
    """How pooling indices lie in memory: (..., depth, height, width, channels), in sizes of the output."""

    spans: tuple[Span, Span, Span]  # depth, height, width; ONE_WIDE where the pool has fewer dimensions
    channels: int

    @property
    def positions(self) -> int:
        """Number of different offsets in a window."""
        return math.prod(span.kernel for span in self.spans)

    @property
    def group(self) -> int:
        """Values after which the spatial pattern repeats."""
        return math.prod(span.output for span in self.spans) * self.channels


ONE_WIDE = Span(1, 1, 1, 1, 0, 1)


def pack_bools(bools: torch.Tensor) -> torch.Tensor:
    """Return one bit per element as bytes, the last byte filled up with zeros."""
    padded = torch.nn.functional.pad(bools.to(torch.uint8), (0, -bools.numel() % 8))
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return (padded.view(-1, 8) * weights).sum(1, dtype=torch.uint8)


def unpack_bools(data: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return the first `count` bits as booleans, or None when a bit beyond them is set."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bools = ((data.view(-1, 1) >> shifts) & 1).view(-1).bool()
    return None if bool(bools[count:].any()) else bools[:count]


def pack_mask(words: torch.Tensor, out: torch.Tensor) -> int:
    """Write the two different words that occur (the first, then the other), and one bit per word: is it the other."""
    if words.numel() == 0:
        return DOES_NOT_FIT
    is_other = words != words[0]
    other = words[int(is_other.to(torch.uint8).argmax())]  # the first word again when there is no other
    if not bool((words[is_other] == other).all()):
        return DOES_NOT_FIT
    pieces = (words[:1].view(torch.uint8), other.view(1).view(torch.uint8), pack_bools(is_other))
    return _write(pieces, out)


def unpack_mask(payload: torch.Tensor, words: torch.Tensor) -> bool:
    """Fill `words` with the two words that the payload begins with."""
    size = words.element_size()
    if payload.numel() != 2 * size + (words.numel() + 7) // 8:
        return False
    two = payload[: 2 * size].clone().view(words.dtype)
    bools = unpack_bools(payload[2 * size :], words.numel())
    if bools is None:
        return False
    torch.where(bools, two[1], two[0], out=words)
    return True


def pack_bits(values: torch.Tensor, nbits: int, out: torch.Tensor) -> int:
    """Write int64 values in `nbits` bits each (1 to 63); negative and larger values do not fit."""
    if values.numel() and (int(values.min()) < 0 or int(values.max()) >> nbits):
        return DOES_NOT_FIT
    shifts = torch.arange(nbits)
    pieces = [pack_bools(((chunk.view(-1, 1) >> shifts) & 1).view(-1)) for chunk in values.split(CHUNK)]
    return _write(pieces, out)


def unpack_bits(data: torch.Tensor, nbits: int, values: torch.Tensor) -> bool:
    """Fill the int64 `values` from `nbits` bits each."""
    count = values.numel()
    if data.numel() != (count * nbits + 7) // 8:
        return False
    shifts = torch.arange(nbits)
    for start in range(0, count, CHUNK):
        chunk = values[start : start + CHUNK]
        end = start + chunk.numel()
        bits = unpack_bools(data[start * nbits // 8 : (end * nbits + 7) // 8], chunk.numel() * nbits)
        if bits is None:
            return False
        torch.sum(bits.view(-1, nbits).to(torch.int64) << shifts, dim=1, out=chunk)
    return True


def pack_window(indices: torch.Tensor, window: Window, nbits: int, out: torch.Tensor) -> int:
    """Write each index (a position in the flattened input) as its offset in its window; others do not fit."""
    bases, rest, offsets = _grid(indices.numel(), window), indices, torch.zeros_like(indices)
    if indices.numel() and int(indices.min()) < 0:
        return DOES_NOT_FIT
    fits = torch.ones_like(indices, dtype=torch.bool)
    scale = 1
    for span, base in zip(reversed(window.spans), reversed(bases), strict=True):  # width first: it varies fastest
        at = rest % span.input - base
        rest = rest // span.input
        step = torch.div(at, span.dilation, rounding_mode="floor")
        fits &= (at % span.dilation == 0) & (step >= 0) & (step < span.kernel)
        offsets += step * scale
        scale *= span.kernel
    fits &= rest == 0
    return pack_bits(offsets, nbits, out) if bool(fits.all()) else DOES_NOT_FIT


def unpack_window(data: torch.Tensor, window: Window, nbits: int, indices: torch.Tensor) -> bool:
    """Fill `indices` from window offsets; an offset that leaves the window or the input is refused."""
    if not unpack_bits(data, nbits, indices) or bool((indices >= window.positions).any()):
        return False
    rest, total, scale, inside = indices.clone(), torch.zeros_like(indices), 1, True
    for span, base in zip(reversed(window.spans), reversed(_grid(indices.numel(), window)), strict=True):
        at = base + rest % span.kernel * span.dilation
        rest = rest // span.kernel
        inside = inside and bool(((at >= 0) & (at < span.input)).all())
        total += at * scale
        scale *= span.input
    indices.copy_(total)
    return inside


def _grid(count: int, window: Window) -> list[torch.Tensor]:
    """Return, per dimension, where in the input each value's window begins (negative in the padding)."""
    repeats = count // window.group
    sizes = [span.output for span in window.spans]
    grids = []
    for dim, span in enumerate(window.spans):
        begin = torch.arange(span.output) * span.stride - span.padding
        shape = [1, 1, 1, 1, 1]
        shape[dim + 1] = span.output
        grids.append(begin.view(shape).expand(repeats, *sizes, window.channels).reshape(-1))
    return grids


def _write(pieces: list[torch.Tensor] | tuple[torch.Tensor, ...], out: torch.Tensor) -> int:
    nbytes = sum(piece.numel() for piece in pieces)
    if nbytes > out.numel():
        return DOES_NOT_FIT
    if pieces:
        out[:nbytes] = torch.cat(list(pieces))
    return nbytes
