"""From a bound to a nested code, in plain torch: sums over the values, steps per channel, tables, header.

The compiled twin is csrc/choose.cpp; both use the same float64 operations in the same order. Sums may differ in their
last bits (another order of adding), so what is derived from them is rounded to few bits before it decides anything.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import numpy as np
import torch

from slimgrad.errors import CorruptPayload
from slimgrad.kernels.reference.nested import (
    AFFINE,
    MAX_LEVELS,
    MAX_RICE,
    MIDDLE,
    NestedCode,
    decode_body,
    encode_body,
    ieee_floats,
)

VERSION = 3
HEADER = struct.Struct("<BBBBIQfIQ")  # version, flags, levels, rice, channels, inner, eps, seed (0), apart

SAMPLE_RUN = 64  # values taken in a row when a sample stands for the tensor
SAMPLE_RUNS = 256  # runs per tensor ...
RUNS_PER_CHANNEL = 2  # ... and at least so many of each channel: an RMS of 128 values is good to 6 %
GOLDEN = 40503  # of 65536, the golden section: its multiples place runs in their stretches and keep step with nothing
EPS_BITS = 8  # significant bits of eps that reach the code: neither the order of summation nor its kernel matters
ARITHMETIC = 2.0**-22  # (x - centre) / scale and back in float32, relative to the largest value: four roundings
SMALLEST_EPS, LARGEST_EPS = 2.0**-100, 2.0**100  # beyond these, 1 / step and level * step leave float32's range
EXACT_STEP = 2.0**-126  # so small that only the centre itself is coded and every other value escapes
COARSE_REACH = 256  # in 16 bits every level that is coded costs rounding for all ...
USUAL_RMS = 6.0  # ... so levels end here, and the few values beyond escape
USUAL_RUNS, USUAL_STRETCH = 16, 6  # runs of each channel in which such stretches of equal values are looked for
CANDIDATES = 8  # the first so many values of a channel that have one: edges of maps have others than their middle
MOST_FITTING, USUAL_REACH = 4.0, 4.0  # a step may become so many times finer, but must reach so many RMS
WELL_CONDITIONED = 1e-10  # below this share of the mean's square, the difference that gives the variance is noise


class Grid(NamedTuple):
    """What rounding to a dtype costs, and its range."""

    relative: float  # half a unit in the last place
    subnormal: float  # the same among subnormals
    reach: int  # largest distance from the centre in steps: rounding grows with it, and may cost a quarter of eps


GRIDS = {
    torch.float32: Grid(2.0**-24, 2.0**-150, MAX_LEVELS << MAX_RICE),
    torch.float16: Grid(2.0**-11, 2.0**-25, 256),
    torch.bfloat16: Grid(2.0**-9, 2.0**-134, 64),
}


class NestedWish(NamedTuple):
    """What the caller wants: eps = rel x RMS when rel > 0, else `absolute`."""

    channels: int
    inner: int
    centred: bool
    sampled: bool
    rel: float
    absolute: float
    apart: int = 1  # values from one to its neighbour in a map


def pack_nested(flat: torch.Tensor, wish: NestedWish, out: torch.Tensor, edges: torch.Tensor | None = None) -> int:
    """Write the payload of `flat` into `out` (uint8) and return its length; 0 when the values had better stay raw.

    `edges`, one per channel: of a centred code, no bin contains values on both sides of its channel's edge, so that
    they are restored on the side on which they were, but for rounding.
    """
    with ieee_floats():
        found = _choose(flat, wish, edges if wish.centred else None)
        if found is None:
            return 0
        code, eps = found
        recorded = np.float32(min(eps, float(np.finfo(np.float32).max)))
        head = bytearray(
            HEADER.pack(VERSION, code.flags, code.levels, code.rice, code.channels, code.inner, recorded, 0, code.apart)
        )
        for table in (code.scale, code.centre, code.thresholds, code.values):
            head += b"" if table is None else table.numpy().tobytes()
        data = head + encode_body(flat, code)
    out[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
    return len(data)


def unpack_nested(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out` from a payload, or raise CorruptPayload."""
    code, body = _parse(payload.numpy().tobytes())
    with ieee_floats():
        decode_body(body, code, out)


def _parse(data: bytes) -> tuple[NestedCode, bytes]:
    if len(data) < HEADER.size:
        raise CorruptPayload(f"nested: expected a header of {HEADER.size} bytes, got {len(data)}")
    version, flags, levels, rice, channels, inner, _, seed, apart = HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptPayload(f"nested: expected format version {VERSION}, got {version}")
    is_known = flags in (0, AFFINE, AFFINE | MIDDLE) and (flags or not rice) and seed == 0 and 1 <= apart < 2**63
    if not (is_known and 1 <= levels <= MAX_LEVELS and rice <= MAX_RICE and channels >= 1 and 1 <= inner < 2**63):
        raise CorruptPayload(f"nested: no such code (flags {flags}, {levels} levels, rice {rice}, {channels} channels)")
    n_affine = 2 * channels if flags & AFFINE else 0
    n_tables = n_affine + (0 if rice else 2 * levels + 1)
    end = HEADER.size + 4 * n_tables
    if len(data) < end:
        raise CorruptPayload(f"nested: expected tables up to byte {end}, got {len(data)} bytes")
    tables = torch.frombuffer(bytearray(data[HEADER.size : end] or b"\0\0\0\0"), dtype=torch.float32)
    scale, centre = (tables[:channels], tables[channels:n_affine]) if n_affine else (None, None)
    middle = n_affine + levels + 1
    thresholds, values = (None, None) if rice else (tables[n_affine:middle], tables[middle:])
    return NestedCode(flags, levels, rice, channels, inner, apart, thresholds, values, scale, centre), data[end:]


def _choose(flat: torch.Tensor, wish: NestedWish, edges: torch.Tensor | None) -> tuple[NestedCode, float] | None:
    """Return the code and the eps it keeps, or None when the values had better stay raw."""
    grid = GRIDS[flat.dtype]
    sums = _sums(flat, wish)
    rms = _overall_rms(sums, wish.centred)
    eps = wish.rel * rms if wish.rel > 0 else wish.absolute
    if rms == 0.0:  # no value but zeros (or the centres) was seen: whatever else there is escapes
        eps = min(eps, torch.finfo(flat.dtype).max) if eps > 0 else torch.finfo(flat.dtype).tiny
    else:
        eps = _rounded_down(min(eps, 2.0 * rms))
    if not eps > 0:
        return None
    levels, rice = _split(rms / (2.0 * eps), grid.reach)
    if wish.centred or wish.channels > 1 or rice > 0:
        scales = _channel_scales(sums, wish, eps, float(levels << rice), grid, edges, _usual(flat, wish))
        if scales is not None:
            scale, centre, kept = scales
            flags = AFFINE | (MIDDLE if wish.centred else 0)
            tables = (None, None) if rice else _unit_tables(levels, wish.centred)
            return NestedCode(flags, levels, rice, wish.channels, wish.inner, wish.apart, *tables, scale, centre), kept
        if wish.centred or (wish.channels > 1 and wish.rel > 0):
            return None
    thresholds, values = _grid_tables(eps, flat.dtype)
    if not values.numel():
        return None
    return NestedCode(0, values.numel(), 0, 1, 1, wish.apart, thresholds, values), eps


def _sums(flat: torch.Tensor, wish: NestedWish) -> torch.Tensor:
    """Return float64 (channels, 4): finite values, non-zeros, sum, sum of squares, over all values or a sample."""
    at = _sampled(flat.numel(), wish)
    x = flat[at].to(torch.float32).to(torch.float64)
    is_finite = torch.isfinite(x)
    x = torch.where(is_finite, x, 0.0)
    columns = torch.stack([is_finite.double(), (x != 0).double(), x, x * x], dim=1)
    return torch.zeros(wish.channels, 4, dtype=torch.float64).index_add_(0, at // wish.inner % wish.channels, columns)


def _usual(flat: torch.Tensor, wish: NestedWish) -> torch.Tensor:
    """Return of each channel the value that many neighbours share, as the background of images; NaN where none is seen.

    Rounded as all values are, it would be wrong by the same amount everywhere, and such errors do not cancel out.
    """
    usual = np.full(wish.channels, np.nan)
    if wish.centred and _is_sampled(flat.numel(), wish):
        starts = _starts(flat.numel(), wish).view(-1, wish.channels)
        at = _runs_from(starts[:: max(1, len(starts) // USUAL_RUNS)].reshape(-1), flat.numel())
        x, channel = flat[at].to(torch.float32).numpy(), (at // wish.inner % wish.channels).numpy()
        order = np.argsort(np.where(np.isfinite(x), channel, wish.channels), kind="stable")[: np.isfinite(x).sum()]
        x, channel = x[order], channel[order]
        begins = np.flatnonzero(np.append(True, (x[1:] != x[:-1]) | (channel[1:] != channel[:-1]))[: len(x)])
        lengths = np.diff(np.append(begins, len(x)))
        found: list[dict[float, int]] = [{} for _ in range(wish.channels)]
        for begin, length in zip(begins[lengths >= USUAL_STRETCH], lengths[lengths >= USUAL_STRETCH], strict=True):
            counts, value = found[channel[begin]], float(x[begin])
            if value in counts or len(counts) < CANDIDATES:
                counts[value] = counts.get(value, 0) + int(length) - USUAL_STRETCH + 1
        usual = np.array([max(counts, key=lambda value: counts[value], default=np.nan) for counts in found])
    return torch.from_numpy(usual)


def _sampled(n: int, wish: NestedWish) -> torch.Tensor:
    """Return the indices of the values that are looked at."""
    return _runs_from(_starts(n, wish), n) if _is_sampled(n, wish) else torch.arange(n)


def _is_sampled(n: int, wish: NestedWish) -> bool:
    return (wish.sampled or wish.rel == 0) and n > 2 * SAMPLE_RUN * _runs_per_channel(wish) * wish.channels


def _runs_per_channel(wish: NestedWish) -> int:
    return max(RUNS_PER_CHANNEL, -(-SAMPLE_RUNS // wish.channels))


def _starts(n: int, wish: NestedWish) -> torch.Tensor:
    """Return where the runs of a sample begin, those of all channels in turn.

    The values of each channel, as they follow each other in memory, are cut into equal stretches, and in each a run
    begins. Runs at equal distances in the tensor would not do: sizes are multiples of powers of two, and such runs met
    4 of 256 channels, or the upper rows of large maps alone.
    """
    per_channel = _runs_per_channel(wish)
    k = torch.arange(per_channel * wish.channels)
    part = k // wish.channels * 65536 + k * GOLDEN % 65536  # of a channel's values, in 65536ths of a stretch
    place = part * (n // wish.channels) // (per_channel * 65536)
    row = place // wish.inner * wish.channels + k % wish.channels
    room = wish.inner - SAMPLE_RUN + 1 if wish.inner >= SAMPLE_RUN else wish.inner  # runs end in their maps
    return row * wish.inner + place % wish.inner * room // wish.inner


def _runs_from(starts: torch.Tensor, n: int) -> torch.Tensor:
    at = (starts.unsqueeze(1) + torch.arange(SAMPLE_RUN)).reshape(-1)
    return at[at < n]


def _overall_rms(sums: torch.Tensor, is_centred: bool) -> float:
    count, nonzero, total, squares = sums.unbind(1)
    if is_centred:
        squares = squares - total * total / torch.clamp(count, min=1.0)
    weight = float((count if is_centred else nonzero).sum())
    return math.sqrt(max(float(squares.sum()), 0.0) / max(weight, 1.0))


def _rounded_down(x: float) -> float:
    if not x > 0 or not math.isfinite(x):
        return x
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.floor(math.ldexp(mantissa, EPS_BITS)), exponent - EPS_BITS)


def _split(rms_in_steps: float, reach: int) -> tuple[int, int]:
    """Return (levels, rice): the number of plain low-order bits that makes the code shortest, within the reach.

    A half-normal magnitude costs about rice + 0.8 rms / 2^rice bits; the minimum is at 2^rice = 0.55 rms.
    """
    rice = 0
    while rice < MAX_RICE and 0.55 * rms_in_steps >= 1.4142135623730951 * (1 << rice):
        rice += 1
    while rice > 0 and reach >> rice < 2:
        rice -= 1
    levels = min(MAX_LEVELS, reach >> rice)
    if reach <= COARSE_REACH and rice == 0:
        levels = min(levels, max(4, math.ceil(USUAL_RMS * rms_in_steps) + 1))
    return levels, rice


def _channel_scales(
    sums: torch.Tensor,
    wish: NestedWish,
    absolute: float,
    reach: float,
    grid: Grid,
    edges: torch.Tensor | None,
    usual: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Return (scale, centre, largest eps) per channel, or None when float32 has no room for steps.

    eps is rel x RMS of the channel (about its mean if centred, else of its non-zeros) or `absolute`, at most two RMS.
    The step is 2 x (eps - what rounding can cost); where that is too much of it, the channel gets EXACT_STEP: its
    values escape and come back bit for bit. So does a centred channel of values that are all alike: a batch norm
    divides it by next to nothing, so that the other channels' steps, or a centre beside an edge, would do great harm.

    Where there is an edge, the centre is the one nearest to the mean that makes it a limit between two bins, and the
    step becomes somewhat finer if that puts a usual value into the middle of its bin. Without an edge the centre does.
    """
    count, nonzero, total, squares = sums.unbind(1)
    mean = torch.zeros_like(total)
    variance = squares / torch.clamp(nonzero, min=1.0)
    is_noise = torch.zeros_like(variance, dtype=torch.bool)
    if wish.centred:
        mean = total / torch.clamp(count, min=1.0)
        variance = torch.clamp(squares / torch.clamp(count, min=1.0) - mean * mean, min=0.0)
        is_noise = (variance <= WELL_CONDITIONED * (mean * mean)) & (count > 0)  # or all alike, zeros too
    rms = torch.sqrt(variance)
    is_flat = rms == 0.0
    eps = torch.minimum(wish.rel * rms if wish.rel > 0 else torch.full_like(rms, absolute), 2.0 * rms)
    eps = torch.where(is_flat, absolute, eps)
    if bool((~is_flat & ((eps < SMALLEST_EPS) | (eps > LARGEST_EPS))).any()):
        return None
    centre = mean.to(torch.float32)
    edge = torch.full_like(mean, math.nan) if edges is None else edges.double()
    is_moved = torch.logical_not(torch.isnan(usual)) | (edges is not None)
    furthest = centre.double().abs() + (2.0 * reach + is_moved.double()) * eps
    slack = (grid.relative + ARITHMETIC) * furthest + grid.subnormal
    is_exact = is_noise | (slack > 0.25 * eps) | (eps < SMALLEST_EPS)
    step = torch.where(is_exact, EXACT_STEP, 2.0 * (eps - slack))
    scale = _few_bits(step)
    has_edge = ~is_exact & ((edge - mean).abs() <= reach * step)
    is_usual = ~is_exact & ((usual - mean).abs() <= reach * step)
    fitted = _few_bits(_fitted(scale.double(), (usual - edge).abs(), USUAL_REACH * rms / reach))
    scale = torch.where(has_edge & is_usual, fitted, scale)
    wide = scale.double()
    beside = edge + (torch.floor((mean - edge) / wide) + 0.5) * wide
    on = usual + torch.floor((mean - usual) / wide + 0.5) * wide
    centre = torch.where(has_edge, beside, torch.where(is_usual, on, mean)).to(torch.float32)
    return scale, centre, float(torch.where(is_exact, EXACT_STEP, eps).max())  # subnormals may lie within it


def _few_bits(step: torch.Tensor) -> torch.Tensor:
    return (step.to(torch.float32).view(torch.int32) & ~0xFFF).view(torch.float32)


def _fitted(step: torch.Tensor, distance: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    """Return a finer step with which a value so far from an edge lies in the middle of its bin, or nearer to it."""
    least = torch.maximum(least, step / MOST_FITTING)
    bins = torch.clamp(torch.ceil(distance / step - 0.5), min=0.0)
    fitted = torch.minimum(distance / (bins + 0.5), step)
    is_better = _off_middle(distance, least) < _off_middle(distance, step)
    otherwise = torch.where((least < step) & is_better, least, step)
    return torch.where((fitted >= least) & (distance > 0), fitted, otherwise)


def _off_middle(distance: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    return (distance - (torch.floor(distance / step) + 0.5) * step).abs()


def _unit_tables(levels: int, is_centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return thresholds and values in steps: 0, 1, 2 ... with middles between, or shifted by half around the centre."""
    steps = torch.arange(levels + 1, dtype=torch.float32)
    return (steps + 0.5, steps[1:].clone()) if is_centred else (steps, steps[:-1] + 0.5)


def _grid_tables(eps: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return thresholds and values on the dtype's own grid: value - threshold <= eps and next threshold - value <= eps.

    Values are as far apart as the grid allows, so nothing is lost to rounding; where the grid is coarser than eps the
    table ends, and larger values escape.
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
    nearest = grid(x)
    return float(nearest if float(nearest) <= x else np.nextafter(nearest, grid(0)))
