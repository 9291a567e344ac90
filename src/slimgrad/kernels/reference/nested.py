"""The body of a nested payload in plain torch: the specification of csrc/nested_*.inc and of docs/format.md.

A body is an index (8 bytes per block of 16,384 values) and the blocks. Everything here works on one block at a time
with boolean planes, in the order in which the bytes lie; nothing is tuned.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from slimgrad.errors import CorruptPayload

BLOCK = 16384  # values that share an index entry: small enough for a first-level cache, large enough to hide its header
GROUP = 64  # values per mask word
AFFINE, MIDDLE = 1, 2  # flags
MAX_LEVELS, MAX_RICE = 15, 12
NON_NEGATIVE, SIGNED, RAW = 0, 1, 2  # of blocks: the two lowest bits of their form
FIRST_GROUPED, N_GROUPED = 2, 3  # in a form: the bit that says so of plane 0, and the first of those that count others
PLANE_GROUP = 4  # bits of a plane that share a flag
N_PLANES = 31  # in a shape: the bits that count planes, ...
FIRST_DIFFERS, SIGNS_DIFFER = 1 << 5, 1 << 6  # ... and those that say that plane 0, or the signs, hold differences
ENTRY = struct.Struct("<IBBH")  # offset in units of 4 bytes, form, shape, escapes


class NestedCode(NamedTuple):
    """What a body's bytes mean; docs/format.md has the header that carries it."""

    flags: int
    levels: int  # K
    rice: int  # low-order bits stored plain
    channels: int  # value i belongs to channel (i // inner) % channels
    inner: int
    apart: int = 1  # value i - apart is a neighbour of value i in a map
    thresholds: torch.Tensor | None = None  # float32, K + 1, rising; when rice is 0
    values: torch.Tensor | None = None  # float32, K
    scale: torch.Tensor | None = None  # float32 per channel; AFFINE only
    centre: torch.Tensor | None = None


class _Planes(NamedTuple):
    unary: list[torch.Tensor]  # boolean, one per non-empty plane, the escape plane last
    sign: torch.Tensor
    low: list[torch.Tensor]
    kind: int


@contextlib.contextmanager
def ieee_floats() -> Iterator[None]:
    """Switch flush-to-zero off, as the compiled kernels do, so that the smallest values are seen."""
    is_flushing = bool((torch.tensor([1e-45]) * 1.0 == 0.0).item())
    if is_flushing:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if is_flushing:
            torch.set_flush_denormal(True)


def encode_body(flat: torch.Tensor, code: NestedCode) -> bytes:
    """Return index and blocks of `flat`."""
    index, blocks, offset = b"", [], 0
    for first in range(0, flat.numel(), BLOCK):
        x = flat[first : first + BLOCK]
        planes = _quantize(x, first, code)
        block, form, shape, escapes = _pack(x, planes, code)
        raw_nbytes = -(-x.numel() * x.element_size() // 4) * 4
        if len(block) < raw_nbytes:
            index += ENTRY.pack(offset // 4, form, shape, escapes)
        else:
            index += ENTRY.pack(offset // 4, RAW, 0, 0)
            block = _padded(x.view(torch.uint8).numpy().tobytes())
        blocks.append(block)
        offset += len(block)
    return index + b"".join(blocks)


def decode_body(data: bytes, code: NestedCode, out: torch.Tensor) -> None:
    """Fill `out` from index and blocks, or raise CorruptPayload."""
    count = -(-out.numel() // BLOCK)
    if len(data) < count * ENTRY.size:
        raise CorruptPayload(f"nested: expected an index of {count * ENTRY.size} bytes, got {len(data)}")
    entries = [ENTRY.unpack_from(data, ENTRY.size * i) for i in range(count)]
    blocks = data[count * ENTRY.size :]
    ends = [entry[0] * 4 for entry in entries[1:]] + [len(blocks)]
    for i, entry in enumerate(entries):
        start, end = entry[0] * 4, ends[i]
        if start > end or end > len(blocks):
            raise CorruptPayload(f"nested: block {i} lies at bytes {start} to {end} of {len(blocks)}")
        _decode_block(blocks[start:end], entry, i * BLOCK, code, out[i * BLOCK : (i + 1) * BLOCK])


def _quantize(x: torch.Tensor, first: int, code: NestedCode) -> _Planes:
    """Return the planes of one block. `above` is "not <=", so that NaN counts as above everything."""
    y = x.to(torch.float32)
    sign = torch.signbit(y)
    nonzero = ~(y.abs() <= 0)
    if code.flags & AFFINE:
        assert code.scale is not None and code.centre is not None
        channel = _channels(first, x.numel(), code)
        if code.flags & MIDDLE:
            y = y - code.centre[channel]
            sign = torch.signbit(y)
        magnitude = y.abs() * (1.0 / code.scale)[channel]
    else:
        magnitude = y.abs()
    if code.flags & MIDDLE:
        kind = SIGNED
        start = ~(magnitude <= (0.5 if code.rice else float(_table(code.thresholds)[0])))
    else:
        kind = SIGNED if bool((sign & nonzero).any()) else NON_NEGATIVE
        start = nonzero if code.flags & AFFINE else ~(magnitude <= float(_table(code.thresholds)[0]))
    unary, low = _rice(magnitude, start, code) if code.rice else (_unary(magnitude, start, code), [])
    return _Planes(unary, sign, low, kind)


def _unary(magnitude: torch.Tensor, plane: torch.Tensor, code: NestedCode) -> list[torch.Tensor]:
    planes = []
    for threshold in [*_table(code.thresholds)[1:].tolist(), math.inf]:
        if not plane.any():
            break
        planes.append(plane)
        plane = plane & ~(magnitude <= threshold)
    return planes


def _rice(
    magnitude: torch.Tensor, start: torch.Tensor, code: NestedCode
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Split the integer code of each value into a quotient, in unary, and `rice` plain low-order bits."""
    limit = float(code.levels << code.rice)
    shifted = magnitude - 0.5 if code.flags & MIDDLE else magnitude
    escape = start & ~(shifted < limit)
    integer = torch.where(start & ~escape, shifted, 0.0).to(torch.int32)
    low = [(integer >> bit & 1).bool() for bit in range(code.rice)]
    quotient = integer >> code.rice
    planes, plane = [], start
    for j in range(1, code.levels + 2):
        if not plane.any():
            break
        planes.append(plane)
        plane = plane & (escape | (quotient >= j) if j < code.levels else escape)
    return planes, low


def _pack(x: torch.Tensor, planes: _Planes, code: NestedCode) -> tuple[bytes, int, int, int]:
    """Return one block's bytes, its form and shape, and its number of escapes."""
    if not planes.unary:
        return b"", planes.kind, 0, 0
    first, shape = planes.unary[0], len(planes.unary)
    body, is_grouped = _plane(_whole_words(first))
    changes, may_group = _plane(_whole_words(_differences(first, code.apart)))
    if may_group and len(changes) < len(body):
        body, is_grouped, shape = changes, True, shape | FIRST_DIFFERS
    form = planes.kind | is_grouped << FIRST_GROUPED
    if planes.kind == SIGNED:
        changes, is_grouped = _plane(_differences(_carried_on(planes.sign, first, code.apart), code.apart)[first])
        body += changes if is_grouped else _bits(planes.sign[first])
        shape |= SIGNS_DIFFER * is_grouped
    for plane in planes.low:
        body += _bits(plane[first])
    is_grouped = False
    for before, plane in zip(planes.unary, planes.unary[1:], strict=False):
        stream, is_grouped = _plane(plane[before], is_grouped)
        body += stream
        form += is_grouped << N_GROUPED
    if len(planes.unary) <= code.levels:
        return body, form, shape, 0
    escaped = x[planes.unary[code.levels]]
    return body + _padded(escaped.contiguous().view(torch.uint8).numpy().tobytes()), form, shape, escaped.numel()


def _plane(bits: torch.Tensor, must_group: bool = False) -> tuple[bytes, bool]:
    """Return the bits as they are, or in groups where that is smaller or was so of a plane before; and which it is."""
    groups = torch.nn.functional.pad(bits, (0, -bits.numel() % PLANE_GROUP)).view(-1, PLANE_GROUP)
    flags = groups.any(1)
    plain, grouped = _bits(bits), _bits(flags) + _bits(groups[flags].view(-1))
    return (grouped, True) if must_group or len(grouped) < len(plain) else (plain, False)


def _whole_words(plane: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(plane, (0, -plane.numel() % GROUP))


def _differences(plane: torch.Tensor, apart: int) -> torch.Tensor:
    """Return where a bit is not the one of its neighbour, `apart` before it; before the first, bits are 0."""
    changes = plane.clone()
    changes[apart:] ^= plane[: max(0, plane.numel() - apart)]
    return changes


def _summed(changes: torch.Tensor, apart: int) -> torch.Tensor:
    """Return the plane of which these are the differences."""
    apart = min(apart, changes.numel())
    rows = torch.nn.functional.pad(changes, (0, -changes.numel() % apart)).view(-1, apart)
    return (rows.to(torch.int32).cumsum(0) % 2).bool().view(-1)[: changes.numel()]


def _carried_on(signs: torch.Tensor, known: torch.Tensor, apart: int) -> torch.Tensor:
    """Return the signs, where they are known, and elsewhere that of the last neighbour of which it is."""
    n = signs.numel()
    apart = min(apart, n)
    rows = torch.nn.functional.pad(known, (0, -n % apart)).view(-1, apart)
    at = torch.arange(rows.numel()).view(-1, apart)
    last = torch.where(rows, at, -1).cummax(0).values.view(-1)[:n]
    return (last >= 0) & signs[last.clamp(min=0)]


def _decode_block(
    data: bytes, entry: tuple[int, int, int, int], first: int, code: NestedCode, out: torch.Tensor
) -> None:
    _, form, shape, n_escapes = entry
    n_planes = shape & N_PLANES
    reader = _Reader(data)
    if form == RAW:
        if shape or n_escapes:
            raise CorruptPayload("nested: a raw block has neither planes nor escapes")
        out.view(torch.uint8).copy_(reader.take(out.numel() * out.element_size()))
        return
    is_empty = shape == 0 and n_escapes == 0 and form in (NON_NEGATIVE, SIGNED)
    is_coded = form & 3 in (NON_NEGATIVE, SIGNED) and form >> N_GROUPED < n_planes <= code.levels + 1
    is_coded = is_coded and (form >> FIRST_GROUPED & 1 or not shape & FIRST_DIFFERS)
    is_coded = is_coded and (form & 3 == SIGNED or not shape & SIGNS_DIFFER)
    if not is_empty and not is_coded:
        raise CorruptPayload(f"nested: unknown block (form {form}, shape {shape}, {n_escapes} escapes)")
    unary, sign, low = _unpack(reader, form, shape, code, out.numel())
    y = _levels(unary, low, code, out.numel())
    if code.flags & AFFINE:
        assert code.scale is not None and code.centre is not None
        channel = _channels(first, out.numel(), code)
        y = y * code.scale[channel]
        y = torch.where(sign, -y, y)
        y = y + code.centre[channel] if code.flags & MIDDLE else y
    else:
        y = torch.where(sign, -y, y)
    limit = torch.finfo(out.dtype).max
    out.copy_(y.clamp(-limit, limit) if out.dtype != torch.float32 else y)
    escaped = unary[code.levels] if n_planes > code.levels else torch.zeros(out.numel(), dtype=torch.bool)
    if int(escaped.sum()) != n_escapes:
        raise CorruptPayload(f"nested: expected {n_escapes} escapes, got {int(escaped.sum())}")
    if n_escapes:
        out[escaped] = reader.take(n_escapes * out.element_size()).clone().view(out.dtype)


def _unpack(
    reader: _Reader, form: int, shape: int, code: NestedCode, n: int
) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    nothing, n_planes = torch.zeros(n, dtype=torch.bool), shape & N_PLANES
    if n_planes == 0:
        return [], nothing, []
    words = reader.plane(-(-n // GROUP) * GROUP, bool(form >> FIRST_GROUPED & 1))
    if words[n:].any():
        raise CorruptPayload("nested: plane 0 is set beyond the last value")
    first = _summed(words[:n], code.apart) if shape & FIRST_DIFFERS else words[:n]
    sign = reader.scatter(first, bool(shape & SIGNS_DIFFER)) if form & 3 == SIGNED else nothing
    if shape & SIGNS_DIFFER:
        sign = _summed(sign, code.apart) & first
    low = [reader.scatter(first) for _ in range(code.rice)]
    unary = [first]
    for number in range(1, n_planes):
        unary.append(reader.scatter(unary[-1], number >= n_planes - (form >> N_GROUPED)))
    return unary, sign, low


def _levels(unary: list[torch.Tensor], low: list[torch.Tensor], code: NestedCode, n: int) -> torch.Tensor:
    y = torch.zeros(n)
    if not unary:
        return y
    if not code.rice:
        for plane, value in zip(unary, _table(code.values).tolist(), strict=False):
            y[plane] = value
        return y
    y[unary[0]] = 1.0 if code.flags & MIDDLE else 0.5
    for bit, plane in enumerate(low):
        y += plane * float(1 << bit)
    for plane in unary[1 : code.levels]:
        y += plane * float(1 << code.rice)
    return y


class _Reader:
    """Takes a block's bytes from the front, and refuses to run beyond them."""

    def __init__(self, data: bytes) -> None:
        self._data = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        self._at = 0

    def take(self, nbytes: int) -> torch.Tensor:
        if self._at + nbytes > self._data.numel():
            raise CorruptPayload(f"nested: a block needs {self._at + nbytes} bytes, got {self._data.numel()}")
        self._at += nbytes
        return self._data[self._at - nbytes : self._at]

    def bits(self, count: int) -> torch.Tensor:
        packed = self.take(-(-count // 32) * 4).numpy()
        return torch.from_numpy(np.unpackbits(packed, bitorder="little")[:count].astype(bool))

    def plane(self, count: int, is_grouped: bool) -> torch.Tensor:
        """Return so many bits, of which empty groups may have been left out."""
        if not is_grouped:
            return self.bits(count)
        flags = self.bits(-(-count // PLANE_GROUP))
        groups = torch.zeros(flags.numel(), PLANE_GROUP, dtype=torch.bool)
        groups[flags] = self.bits(int(flags.sum()) * PLANE_GROUP).view(-1, PLANE_GROUP)
        return groups.view(-1)[:count]

    def scatter(self, where: torch.Tensor, is_grouped: bool = False) -> torch.Tensor:
        plane = torch.zeros_like(where)
        plane[where] = self.plane(int(where.sum()), is_grouped)
        return plane


def _channels(first: int, n: int, code: NestedCode) -> torch.Tensor:
    return torch.arange(first, first + n) // code.inner % code.channels


def _table(table: torch.Tensor | None) -> torch.Tensor:
    assert table is not None
    return table


def _bits(plane: torch.Tensor) -> bytes:
    return _padded(np.packbits(plane.numpy(), bitorder="little").tobytes())


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
