"""acgc: the quantiser of AC-GC, fixed point with 2 to 16 bits, chosen per channel from the bound. A rival of `nested`.

    scale = 1 / (max|x| + 1e-6)      f = -log2(eps) - log2(scale) - 1      bits = clip(trunc(f), 1, 15) + 1

per channel (`axis`), which makes the step 2^-bits of the channel's range and the error at most eps. Codes are packed in
exactly that many bits, one more where the tensor has negative values: a sign is not free. With `zvc`, a tensor without
negative values gets one bit per value for "is zero" and codes for the rest, where that is smaller.

The published quantiser saturates at the end of its range and misses its bound where 16 bits are too few. Here every
value is restored and compared, and what is further off than eps is stored exactly, with its position; a channel in
which that costs more than another bit gets the bit.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

import torch

from slimgrad import kernels
from slimgrad.codecs.base import FLOATS, Bound, Channels, Codec, Room
from slimgrad.codecs.cast import CHUNK, exact_float64, position_dtype, position_nbytes, read_positions, rms_of
from slimgrad.codecs.words import WORDS, not_written_by, words_of
from slimgrad.errors import ConfigError, CorruptPayload

HEAD = struct.Struct("<BBHIQId")  # flags, zero, zero, channels, inner, exact values, eps
SIGNED, ZEROS = 1, 2  # flags; others are reserved
SMALLEST, LARGEST = 2, 16  # bits
RANGE_MARGIN = 1e-6  # added to max|x| by the authors, so that a dead channel divides by something


@dataclass(frozen=True, slots=True)
class Acgc(Codec):
    """AC-GC's fixed point: AutoQuantZ, or AutoQuant without `zvc`."""

    name = "acgc"
    tag = 8
    is_lossless = False
    dtypes = FLOATS

    zvc: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.zvc, bool):
            raise ConfigError(f"acgc expected zvc=True or zvc=False, got {self.zvc!r}")

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        if bound is None or flat.numel() == 0:
            return None
        count, inner = channels[:2] if channels is not None and channels.count > 1 else (1, 1)
        eps = _eps_per_channel(bound, flat, count)
        coded = _quantise(flat.view(-1, count, inner), eps)
        limit = flat.numel() * flat.element_size()
        positions = coded.misses.view(-1).nonzero().view(-1)
        if positions.numel() * (position_nbytes(flat.numel()) + flat.element_size()) >= limit:
            return None
        flags, body = _packed(coded, self.zvc)
        head = HEAD.pack(flags, 0, 0, count, inner, positions.numel(), float(eps.max()))
        pieces = [
            torch.frombuffer(bytearray(head), dtype=torch.uint8),
            coded.bits.to(torch.uint8),
            coded.steps.view(torch.uint8),
            positions.to(position_dtype(flat.numel())).view(torch.uint8),
            words_of(flat)[positions].view(torch.uint8),
            *body,
        ]
        nbytes = sum(piece.numel() for piece in pieces)
        payload = room(nbytes)[:nbytes]
        torch.cat(pieces, out=payload)
        return payload

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        read = _Reader(payload, out)
        flags, zero, more, count, inner, n_exact, eps = HEAD.unpack(read.take(HEAD.size).numpy().tobytes())
        is_known = flags in (0, SIGNED, ZEROS) and zero == more == 0 and count >= 1 <= inner and 0.0 <= eps < math.inf
        if not is_known or out.numel() == 0 or out.numel() % (count * inner):
            raise read.refusal
        bits = read.take(count).long()
        steps = read.take(4 * count).clone().view(torch.float32)
        positions = read_positions(read.take(n_exact * position_nbytes(out.numel())), out.numel())
        kept = read.take(n_exact * out.element_size())
        is_usual = bool(((bits >= SMALLEST) & (bits <= LARGEST) & steps.isfinite() & (steps > 0)).all())
        if positions is None or not is_usual:
            raise read.refusal
        codes = _unpacked(read, flags, bits, torch.empty(out.numel() // (count * inner), count, inner).long())
        out.copy_(_restored(codes, steps, out.dtype).view(-1))
        words_of(out)[positions] = kept.clone().view(WORDS[out.element_size()])

    def eps_of(self, payload: torch.Tensor) -> float:
        if payload.numel() < HEAD.size:
            raise CorruptPayload(f"acgc: expected a header of {HEAD.size} bytes, got {payload.numel()}")
        return HEAD.unpack(payload[: HEAD.size].numpy().tobytes())[-1]


class Coded(NamedTuple):
    """The codes of a tensor, (outer, channels, inner), before they are packed."""

    codes: torch.Tensor  # int32, from 0 or from -2^bits to 2^bits - 1
    bits: torch.Tensor  # per channel, int64
    steps: torch.Tensor  # per channel, float32
    misses: torch.Tensor  # where the restored value is off by more than eps, or not a number
    is_signed: bool


def _eps_per_channel(bound: Bound, flat: torch.Tensor, count: int) -> torch.Tensor:
    """Return eps of every channel in float64; a bound may know one per channel, as AcGc's for batch norm does."""
    per_channel = getattr(bound, "per_channel", ())
    if len(per_channel) == count:
        return torch.tensor(per_channel, dtype=torch.float64)
    eps = bound.eps(rms_of(flat) if bound.needs_rms else 1.0)
    return torch.full((count,), eps, dtype=torch.float64)


def _quantise(x: torch.Tensor, eps: torch.Tensor) -> Coded:
    """Return the codes of values that are seen as (outer, channels, inner)."""
    is_signed, peaks = False, torch.zeros(x.shape[1], dtype=torch.float64)
    for part in _parts(x):
        values = _finite(exact_float64(part))
        is_signed = is_signed or bool((values < 0).any())
        peaks = torch.maximum(peaks, values.abs().amax((0, 2)))
    ranges = peaks + RANGE_MARGIN
    bits = bits_for(ranges, eps)
    coded = _coded(x, eps, ranges, bits, is_signed)
    per_miss = 8 * (position_nbytes(x.numel()) + x.element_size())
    is_dear = (coded.misses.sum((0, 2)) * per_miss > x.shape[0] * x.shape[2]) & (bits < LARGEST)
    return _coded(x, eps, ranges, bits + is_dear, is_signed) if bool(is_dear.any()) else coded


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.split(max(1, CHUNK // (x.shape[1] * x.shape[2])))


def _finite(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isfinite(), values, 0.0)


def bits_for(ranges: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """Return the published number of bits of each channel, for `ranges` = max|x| + 1e-6.

    trunc(f) is read off the exponent, so that no logarithm decides: range / eps = m * 2^e with 1/2 <= m < 1 has
    f = log2(m) + e - 1, and its integer part is e - 2 wherever it is not clipped to 1.
    """
    quotient = (ranges / eps).clamp(max=2.0**64)  # infinite where eps is 0
    return (torch.frexp(quotient).exponent.long() - 2).clamp(SMALLEST - 1, LARGEST - 1) + 1


def _coded(x: torch.Tensor, eps: torch.Tensor, ranges: torch.Tensor, bits: torch.Tensor, is_signed: bool) -> Coded:
    steps = torch.ldexp(ranges, -bits).float()
    ends = (1 << bits).view(1, -1, 1)
    lowest = -ends if is_signed else torch.zeros_like(ends)
    codes, misses = torch.empty(x.shape, dtype=torch.int32), torch.empty(x.shape, dtype=torch.bool)
    for part, some, missed in zip(_parts(x), _parts(codes), _parts(misses), strict=True):
        values = exact_float64(part)
        scaled = _finite(values) / steps.double().view(1, -1, 1)
        some.copy_(scaled.round_().clamp_(lowest, ends - 1))
        again = exact_float64(_restored(some, steps, x.dtype))
        torch.le((again - values).abs_(), eps.view(1, -1, 1), out=missed).logical_not_()  # NaN is a miss too
    return Coded(codes, bits, steps, misses, is_signed)


def _restored(codes: torch.Tensor, steps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (codes.double() * steps.double().view(1, -1, 1)).to(dtype)


def _packed(coded: Coded, may_skip_zeros: bool) -> tuple[int, list[torch.Tensor]]:
    """Return the flags, and the codes as bytes: channels of equal width together, the narrowest first."""
    widths = coded.bits + coded.is_signed
    codes = coded.codes
    per_channel = codes.shape[0] * codes.shape[2]
    n_codes = (codes != 0).sum((0, 2))
    nbits_zvc = int((n_codes * widths).sum()) + codes.numel()  # one for each value, and codes
    skips_zeros = may_skip_zeros and not coded.is_signed and nbits_zvc < int(widths.sum()) * per_channel
    pieces = [_pack((codes != 0).view(-1), 1)] if skips_zeros else []
    for width in widths.unique().tolist():
        some = codes[:, widths == width].reshape(-1)
        pieces.append(_pack(some[some != 0] if skips_zeros else some, width, coded.is_signed))
    return (SIGNED if coded.is_signed else ZEROS if skips_zeros else 0), pieces


def _unpacked(read: _Reader, flags: int, bits: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Fill `codes`, the inverse of _packed."""
    is_signed = flags == SIGNED
    widths = bits + is_signed
    is_coded = read.codes(codes.numel(), 1).view_as(codes).bool() if flags == ZEROS else None
    for width in widths.unique().tolist():
        chosen = widths == width
        some = torch.zeros_like(codes[:, chosen])
        if is_coded is None:
            some = read.codes(some.numel(), width).view_as(some)
        else:
            where = is_coded[:, chosen]
            some[where] = read.codes(int(where.sum()), width)
        codes[:, chosen] = some - (1 << (width - 1) if is_signed else 0)
    if read.payload.numel() != read.at:
        raise read.refusal
    return codes


def _pack(codes: torch.Tensor, width: int, is_signed: bool = False) -> torch.Tensor:
    """Return codes of this width as bytes; signed ones are shifted to begin at zero."""
    data = torch.empty((codes.numel() * width + 7) // 8, dtype=torch.uint8)
    kernels.active().pack_bits(codes.long() + (1 << (width - 1) if is_signed else 0), width, data)
    return data


class _Reader:
    """A payload, read from front to back; asking for more than there is raises CorruptPayload."""

    def __init__(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        self.payload, self.out, self.at = payload, out, 0

    @property
    def refusal(self) -> CorruptPayload:
        return not_written_by(Acgc.name, self.payload, self.out)

    def take(self, nbytes: int) -> torch.Tensor:
        if nbytes > self.payload.numel() - self.at:
            raise self.refusal
        self.at += nbytes
        return self.payload[self.at - nbytes : self.at]

    def codes(self, count: int, width: int) -> torch.Tensor:
        codes = torch.empty(count, dtype=torch.int64)
        if not kernels.active().unpack_bits(self.take((count * width + 7) // 8), width, codes):
            raise self.refusal
        return codes
