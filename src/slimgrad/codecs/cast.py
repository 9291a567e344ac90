"""cast: values in a shorter floating-point type, bfloat16 or float8 (e4m3fn with one power-of-two scale per tensor).

A value whose restored form is further off than the bound allows is stored exactly beside the codes, with its position,
as are NaN and infinities. When too many are, the tensor is left to `raw`.

Note [No float arithmetic on subnormals]
The caller may run with flush-to-zero, where subnormal operands read as zero and results vanish. Codes are therefore
made and read by integer operations or tables, and errors are compared in float64, which the smallest float32 reaches as
a normal number through its mantissa. The same input gives the same bytes either way.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass

import torch

from slimgrad.codecs.base import FLOATS, Bound, Channels, Codec, Room
from slimgrad.codecs.words import WORDS, not_written_by, words_of
from slimgrad.errors import ConfigError, CorruptPayload

FORMS = {"bfloat16": 1, "float8": 2}  # the first byte of a payload; others are reserved
CODE_NBYTES = {1: 2, 2: 1}
HEAD = struct.Struct("<BBhId")  # form, zero, exponent of the scale, number of exact values, eps
CHUNK = 1 << 18  # values per step, so that float64 work space stays at a few MiB
FLOAT8_MAX = 448.0
EXPONENTS = range(-117, 120)  # of the scale: every float8 value times it is a normal float32, or zero
MAX_ESCAPES = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Cast(Codec):
    name = "cast"
    tag = 7
    is_lossless = False
    dtypes = FLOATS

    to: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.to not in FORMS:
            raise ConfigError(f"cast expected one of {', '.join(FORMS)}, got {self.to!r}; write Cast('bfloat16')")

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        form, size = FORMS[self.to], flat.element_size()
        if bound is None or CODE_NBYTES[form] >= size or flat.numel() == 0:
            return None
        eps = bound.eps(rms_of(flat) if bound.needs_rms else 1.0)
        exponent = _scale_exponent(flat) if form == FORMS["float8"] else 0
        per_escape = position_nbytes(flat.numel()) + size
        limit = min((flat.numel() * (size - CODE_NBYTES[form]) - HEAD.size) // per_escape, MAX_ESCAPES)
        codes = torch.empty(flat.numel() * CODE_NBYTES[form], dtype=torch.uint8)
        positions = _fill_codes(flat, form, exponent, eps, codes, limit)
        if positions is None:
            return None
        head = torch.frombuffer(bytearray(HEAD.pack(form, 0, exponent, positions.numel(), eps)), dtype=torch.uint8)
        kept = words_of(flat)[positions].view(torch.uint8)
        written = positions.to(position_dtype(flat.numel())).view(torch.uint8)
        pieces = torch.cat([head, written, kept, codes])
        payload = room(pieces.numel())[: pieces.numel()]
        payload.copy_(pieces)
        return payload

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if payload.numel() < HEAD.size:
            raise not_written_by(self.name, payload, out)
        form, zero, exponent, count, eps = HEAD.unpack(payload[: HEAD.size].numpy().tobytes())
        nbytes, size = position_nbytes(out.numel()), out.element_size()
        is_known = form in CODE_NBYTES and zero == 0 and 0.0 <= eps < math.inf and CODE_NBYTES[form] < size
        is_known = is_known and (exponent in EXPONENTS if form == FORMS["float8"] else exponent == 0)
        if not is_known or payload.numel() != HEAD.size + count * (nbytes + size) + out.numel() * CODE_NBYTES[form]:
            raise not_written_by(self.name, payload, out)
        written, kept, codes = payload[HEAD.size :].split(
            [count * nbytes, count * size, out.numel() * CODE_NBYTES[form]]
        )
        positions = read_positions(written, out.numel())
        if positions is None:
            raise not_written_by(self.name, payload, out)
        _restore(codes.clone(), form, exponent, out)
        words_of(out)[positions] = kept.clone().view(WORDS[size])

    def eps_of(self, payload: torch.Tensor) -> float:
        if payload.numel() < HEAD.size:
            raise CorruptPayload(f"cast: expected a header of {HEAD.size} bytes, got {payload.numel()}")
        return HEAD.unpack(payload[: HEAD.size].numpy().tobytes())[-1]


def _fill_codes(
    flat: torch.Tensor, form: int, exponent: int, eps: float, codes: torch.Tensor, limit: int
) -> torch.Tensor | None:
    """Write the codes and return the positions of values that they restore too far off; None beyond `limit` of them."""
    found, total = [], 0
    restored = torch.empty(min(CHUNK, flat.numel()), dtype=flat.dtype)
    for start in range(0, flat.numel(), CHUNK):
        values = flat[start : start + CHUNK]
        part = codes[start * CODE_NBYTES[form] : (start + values.numel()) * CODE_NBYTES[form]]
        part.copy_(_codes_of(values, form, exponent).view(torch.uint8))
        again = restored[: values.numel()]
        _restore(part, form, exponent, again)
        is_close = (exact_float64(values) - exact_float64(again)).abs() <= eps  # False for NaN, and for inf - inf
        found.append(is_close.logical_not().nonzero().view(-1) + start)
        total += found[-1].numel()
        if total > limit:
            return None
    return torch.cat(found)


def _codes_of(values: torch.Tensor, form: int, exponent: int) -> torch.Tensor:
    """Return the nearest code of each value, ties to even; whatever for NaN and infinities."""
    if form == FORMS["bfloat16"]:
        bits = values.view(torch.int32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(torch.int16)
    scaled = values.float() * math.ldexp(1.0, -exponent)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(_is_subnormal(values), (values.signbit().to(torch.uint8)) << 7, codes)


def _restore(codes: torch.Tensor, form: int, exponent: int, out: torch.Tensor) -> None:
    """Fill `out` with the values that the codes stand for."""
    if form == FORMS["bfloat16"]:
        torch.bitwise_left_shift(codes.view(torch.int16).int(), 16, out=out.view(torch.int32))
    else:
        out.copy_(_float8_table(exponent).to(out.dtype)[codes.long()])


@functools.cache
def _float8_table(exponent: int) -> torch.Tensor:
    """Return what each of the 256 codes (sign, 4 bits of power, 3 of mantissa) stands for, in float32: exact."""
    table = []
    for code in range(256):
        mantissa, power = code & 7, code >> 3 & 15
        value = math.ldexp(mantissa if power == 0 else mantissa + 8, max(power, 1) - 10 + exponent)
        value = math.nan if code & 0x7F == 0x7F else value
        table.append(-value if code >= 128 else value)
    return torch.tensor(table, dtype=torch.float32)


def exact_float64(values: torch.Tensor) -> torch.Tensor:
    """Return the values in float64, subnormal ones too. See Note [No float arithmetic on subnormals]."""
    wide = values.double()
    if values.dtype == torch.float16:
        return wide  # the conversion from float16 is exempt from flushing
    bits = values.view(torch.int32) if values.dtype == torch.float32 else values.view(torch.int16).int() << 16
    tiny = (bits & 0x7FFFFF).double() * 2.0**-149
    return torch.where(_is_subnormal(values), torch.where(bits < 0, -tiny, tiny), wide)


def _is_subnormal(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.float16:
        return torch.zeros_like(values, dtype=torch.bool)  # all normal once they are float32
    words = words_of(values)
    exponent_bits = 0x7F800000 if values.dtype == torch.float32 else 0x7F80
    return (words & exponent_bits) == 0


def _scale_exponent(flat: torch.Tensor) -> int:
    """Return the smallest e for which the largest finite value is at most 448 * 2^e."""
    largest = 0.0
    for values in flat.split(CHUNK):
        sizes = exact_float64(values).abs()
        largest = max(largest, float(torch.where(sizes.isfinite(), sizes, 0.0).max()))
    if largest == 0.0:
        return 0
    fraction, exponent = math.frexp(largest / FLOAT8_MAX)
    exponent = exponent - 1 if fraction == 0.5 else exponent
    return min(max(exponent, EXPONENTS.start), EXPONENTS.stop - 1)


def rms_of(flat: torch.Tensor) -> float:
    """Return the RMS of the finite non-zero values, summed in an order that does not depend on threads."""
    sums, count = [], 0
    for values in flat.split(CHUNK):
        wide = exact_float64(values)
        wide = wide[wide.isfinite() & (wide != 0)]
        count += wide.numel()
        sums.append(float((wide * wide).numpy().sum()))
    return math.sqrt(math.fsum(sums) / count) if count else 0.0


def position_nbytes(count: int) -> int:
    return 4 if count <= 1 << 32 else 8


def position_dtype(count: int) -> torch.dtype:
    return WORDS[position_nbytes(count)]


def read_positions(written: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return the positions of exact values; None unless they rise and stay below `count`."""
    positions = written.clone().view(position_dtype(count)).long()
    if position_nbytes(count) == 4:
        positions &= 0xFFFFFFFF
    if positions.numel() == 0:
        return positions
    rises = bool((positions[1:] > positions[:-1]).all())
    return positions if rises and int(positions[0]) >= 0 and int(positions[-1]) < count else None
