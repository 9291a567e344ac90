"""nested: unary bit planes under an error bound. Zeros stay zeros, signs stay exact, and it runs at the speed of memory.

    plane 0: |x| > 0      plane k: |x| > threshold k, only where plane k - 1 is set      restored: the middle of the bin

Three forms, chosen here and recorded in the header (docs/format.md):
- a table of thresholds and values for the whole tensor, built on the tensor's own number grid: no arithmetic, no rounding;
- steps per channel (`axis`), or finer than a unary code likes (Rice: low-order bits stored plain): (x - centre) / scale;
- `Nested(centred=True)`: a middle bin around the mean, per channel with `axis`. For dense data whose sign nobody needs.

This module turns a bound into such a code; the kernels do the loops.
"""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from slimgrad import kernels
from slimgrad.codecs.base import FLOATS, Bound, Channels, Codec, Room
from slimgrad.errors import CorruptPayload
from slimgrad.kernels.reference.nested import AFFINE, BLOCK, ENTRY, MAX_LEVELS, MAX_RICE, MIDDLE, NestedCode

VERSION = 1
HEADER = struct.Struct("<BBBBIQfI")  # version, flags, levels, rice, channels, inner, eps, dither seed (reserved: 0)
SAMPLE_RUN = 64  # values taken in a row when a sample stands for the tensor
SAMPLE_RUNS = 256  # runs per tensor, and at least as many values per channel
EPS_BITS = 8  # significant bits of eps that reach the code, so that tables repeat and the order of summation does not matter
MAX_REACH = {torch.float32: MAX_LEVELS << MAX_RICE, torch.float16: 256, torch.bfloat16: 64}
# largest distance from the centre in steps: rounding to the dtype grows with it, and may cost at most a quarter of eps


@dataclass(frozen=True, slots=True)
class Nested(Codec):
    """The nested code; `sampled` takes the RMS that scales a relative bound from a sample of the values."""

    name: ClassVar[str] = "nested"
    tag: ClassVar[int] = 1
    is_lossless: ClassVar[bool] = False
    dtypes: ClassVar[frozenset[torch.dtype]] = FLOATS

    centred: bool = False
    sampled: bool = False

    def encode(self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room) -> torch.Tensor | None:
        assert bound is not None  # codecs.encode has checked
        found = self._code(flat, bound, channels or Channels(1, max(1, flat.numel())))
        if found is None:
            return None
        code, eps = found
        header = _header(code, eps)
        n_blocks = -(-flat.numel() // BLOCK)
        capacity = len(header) + n_blocks * (ENTRY.size + 4) + flat.numel() * flat.element_size()
        out = room(capacity)
        out[: len(header)] = torch.frombuffer(header, dtype=torch.uint8)
        used = kernels.active().nested_encode(flat, code, out[len(header) :])
        return out[: len(header) + used]

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        code, body = _parse(payload)
        kernels.active().nested_decode(body, code, out)

    def eps_of(self, payload: torch.Tensor) -> float:
        return struct.unpack_from("<f", payload[16:20].numpy())[0]

    def _code(self, flat: torch.Tensor, bound: Bound, channels: Channels) -> tuple[NestedCode, float] | None:
        """Return the code that keeps `bound` and the eps it keeps, or None when the values had better stay raw."""
        is_exact = bound.needs_rms and not self.sampled
        sums = kernels.active().moments(flat, *channels, *_runs(flat.numel(), channels.count, is_exact))
        rms = _overall_rms(sums, self.centred)
        eps = _rounded_down(min(bound.eps(rms), 2.0 * rms if rms > 0 else math.inf), EPS_BITS)
        if eps <= 0.0 or not math.isfinite(eps):
            return None
        levels, rice = _split(rms / (2.0 * eps), flat.dtype)
        if self.centred or channels.count > 1 or rice > 0:
            rel = bound.eps(1.0) if bound.needs_rms else 0.0
            reach = levels << rice
            scales = kernels.active().channel_scales(sums, flat.dtype, self.centred, rel, eps, reach)
            if scales is not None:
                scale, centre, eps = scales
                flags = AFFINE | (MIDDLE if self.centred else 0)
                thresholds, values = (None, None) if rice else _unit_tables(levels, self.centred)
                return NestedCode(flags, levels, rice, *channels, thresholds, values, scale, centre), eps
            if self.centred or (channels.count > 1 and bound.needs_rms):
                return None
        thresholds, values = _grid_tables(eps, flat.dtype)
        if values.numel() == 0:
            return None
        return NestedCode(0, values.numel(), 0, 1, 1, thresholds, values), eps


def _runs(n: int, channels: int, is_exact: bool) -> tuple[int, int]:
    """Return (run, every) for `moments`: all values, or enough runs for every channel to be seen."""
    wanted = SAMPLE_RUN * max(SAMPLE_RUNS, channels * 4)
    if is_exact or n <= 2 * wanted:
        return max(1, n), max(1, n)
    every = n // (wanted // SAMPLE_RUN)
    return SAMPLE_RUN, every | 1  # odd, so that runs do not keep step with rows and channels


def _overall_rms(sums: torch.Tensor, is_centred: bool) -> float:
    count, nonzero, _, squares = sums.sum(0).tolist() if sums.shape[0] > 1 else sums[0].tolist()
    if not is_centred:
        return math.sqrt(squares / max(nonzero, 1.0))
    between = float((sums[:, 2] * sums[:, 2] / torch.clamp(sums[:, 0], min=1.0)).sum())
    return math.sqrt(max(squares - between, 0.0) / max(count, 1.0))


def _split(rms_in_steps: float, dtype: torch.dtype) -> tuple[int, int]:
    """Return (levels, rice): the number of plain low-order bits that makes the unary part shortest, within the reach."""
    rice = 0
    if rms_in_steps > 0:
        # a half-normal magnitude costs about rice + 0.8 rms / 2^rice bits; the minimum is at 2^rice = 0.55 rms
        rice = max(0, min(MAX_RICE, round(math.log2(0.55 * rms_in_steps))))
    reach = MAX_REACH[dtype]
    while rice > 0 and reach >> rice < 2:
        rice -= 1
    return min(MAX_LEVELS, reach >> rice), rice


@functools.lru_cache(maxsize=4096)
def _grid_tables(eps: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return thresholds and values on the dtype's own grid: value - threshold <= eps and next threshold - value <= eps.

    Values are as far apart as the grid allows, so nothing is lost to rounding; where the grid is coarser than eps the table
    ends, and larger values escape.
    """
    eps *= 1.0 - 2.0**-40  # covers the rounding of the two sums below
    thresholds, values = [0.0], []
    while len(values) < MAX_LEVELS:
        value = _on_grid(thresholds[-1] + eps, dtype)
        if value <= thresholds[-1]:
            break
        values.append(value)
        thresholds.append(_on_grid(value + eps, dtype))
    return torch.tensor(thresholds, dtype=torch.float32), torch.tensor(values, dtype=torch.float32)


def _on_grid(x: float, dtype: torch.dtype) -> float:
    """Return the largest number of that dtype that is at most x (x >= 0)."""
    largest = torch.finfo(dtype).max
    if x >= largest:
        return largest
    if dtype == torch.bfloat16:
        below = np.array([x], dtype=np.float32)
        if float(below[0]) > x:
            below = np.nextafter(below, np.float32(0))
        return float((below.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)[0])
    grid = np.float16 if dtype == torch.float16 else np.float32
    below = grid(x)
    return float(below if float(below) <= x else np.nextafter(below, grid(0)))


@functools.lru_cache(maxsize=32)
def _unit_tables(levels: int, is_centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return thresholds and values in steps: 0, 1, 2 ... with middles between, or shifted by half around the centre."""
    steps = torch.arange(levels + 1, dtype=torch.float32)
    return (steps + 0.5, steps[1:].clone()) if is_centred else (steps, steps[:-1] + 0.5)


def _rounded_down(x: float, bits: int) -> float:
    if x <= 0 or not math.isfinite(x):
        return x
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.floor(math.ldexp(mantissa, bits)), exponent - bits)


def _header(code: NestedCode, eps: float) -> bytearray:
    """Return the bytes in front of the body; `_parse` reads them back."""
    recorded = np.float32(min(eps, float(np.finfo(np.float32).max)))
    data = bytearray(HEADER.pack(VERSION, code.flags, code.levels, code.rice, code.channels, code.inner, recorded, 0))
    for table in (code.scale, code.centre, code.thresholds, code.values):
        if table is not None:
            data += table.numpy().tobytes()
    return data


def _parse(payload: torch.Tensor) -> tuple[NestedCode, torch.Tensor]:
    """Return the code and the body of a payload, or raise CorruptPayload."""
    if payload.numel() < HEADER.size:
        raise CorruptPayload(f"nested: expected a header of {HEADER.size} bytes, got {payload.numel()}")
    version, flags, levels, rice, channels, inner, _, seed = HEADER.unpack_from(payload[: HEADER.size].numpy())
    if version != VERSION:
        raise CorruptPayload(f"nested: expected format version {VERSION}, got {version}")
    is_known = flags in (0, AFFINE, AFFINE | MIDDLE) and (flags or not rice) and seed == 0
    if not (is_known and 1 <= levels <= MAX_LEVELS and rice <= MAX_RICE and channels >= 1 and 1 <= inner < 2**63):
        raise CorruptPayload(f"nested: no such code (flags {flags}, {levels} levels, rice {rice}, {channels} channels)")
    n_affine = 2 * channels if flags & AFFINE else 0
    n_tables = 0 if rice else 2 * levels + 1
    end = HEADER.size + 4 * (n_affine + n_tables)
    if payload.numel() < end:
        raise CorruptPayload(f"nested: expected tables up to byte {end}, got {payload.numel()} bytes")
    tables = payload[HEADER.size : end].clone().view(torch.float32)
    scale, centre = (tables[:channels], tables[channels:n_affine]) if n_affine else (None, None)
    thresholds, values = (None, None) if rice else (tables[n_affine : n_affine + levels + 1], tables[n_affine + levels + 1 :])
    return NestedCode(flags, levels, rice, channels, inner, thresholds, values, scale, centre), payload[end:]
