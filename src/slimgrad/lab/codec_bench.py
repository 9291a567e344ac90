"""Measures codecs on samples: size, speed and what is left of the values. `slimgrad bench codecs` prints it.

How speed is measured: everything is warm (one untimed run first; codecs write into the same room and the same output
every time), and every round does one memcpy of the sample's bytes, one encode and one decode. A speed is the median
over the rounds of memcpy seconds / own seconds: 1.0 is the speed of memory on one thread, whatever else runs.
The bound is the same for all: eps = step / 2, with the step in multiples of the RMS of the sample's non-zero values.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from slimgrad import codecs
from slimgrad.bounds.fixed import Absolute
from slimgrad.codecs.cast import Cast
from slimgrad.errors import ConfigError
from slimgrad.lab import rivals
from slimgrad.lab.samples import Sample, rms_of_nonzero

ROUNDS = 9
SECONDS_PER_ROW = 4.0  # slow rivals get fewer rounds, at least one


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `step` is in RMS and None for lossless codes; a share of nothing is None."""

    sample: str
    dtype: str
    nbytes: int
    codec: str
    step: float | None
    eps: float
    stored: int
    bits_per_value: float
    encode_speed: float  # x memcpy
    decode_speed: float  # x memcpy
    memcpy_gb_per_s: float
    worst_error: float  # |error| / eps, in float64
    signs_kept: float | None
    zeros_kept: float | None

    @property
    def ratio(self) -> float:
        return self.nbytes / self.stored


@dataclass(frozen=True, slots=True)
class Contender:
    """A code bound to one sample and one eps, ready to run."""

    name: str
    is_lossless: bool
    encode: Callable[[], Any]
    decode: Callable[[Any], torch.Tensor]
    nbytes: Callable[[Any], int]


def measure(
    samples: list[Sample], steps: tuple[float, ...], rounds: int = ROUNDS, threads: int = 1, only: str = ""
) -> Iterator[Row]:
    """Yield a row per sample, step and code that applies to it, lossless ones first; `only` keeps the code so named."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for sample in samples:
            rms = rms_of_nonzero(sample.tensor) if sample.tensor.is_floating_point() else 0.0
            for step in (None, *steps) if rms > 0 else (None,):
                eps = step * rms / 2 if step else 0.0
                wanted = (one for one in contenders(sample, eps) if only in ("", one.name))
                rows = (_row(sample, contender, step, eps, rounds) for contender in wanted)
                yield from (row for row in rows if row is not None)
    finally:
        torch.set_num_threads(threads_before)


def contenders(sample: Sample, eps: float) -> list[Contender]:
    """Return the lossy codes, ours and the installed rivals, that might code this sample; the lossless if eps is 0."""
    known = codecs.names()
    configured = {name: codecs.get(name) for name in known} | {"cast float8": Cast("float8")} | {**sample.fitted}
    ours = [_ours(label, codec, sample, eps) for label, codec in configured.items() if codec.name in known]
    theirs = [_theirs(rival, sample, eps) for rival in rivals.installed() if rival.takes(sample.tensor)]
    return [contender for contender in ours + theirs if contender.is_lossless == (eps == 0.0)]


def _ours(label: str, codec: codecs.Codec, sample: Sample, eps: float) -> Contender:
    bound = None if codec.is_lossless or eps == 0.0 else Absolute(eps)
    axis = sample.axis if label in sample.fitted else None
    warm: dict[str, torch.Tensor] = {}

    def room(nbytes: int) -> torch.Tensor:
        if "room" not in warm or warm["room"].numel() < nbytes:
            warm["room"] = torch.zeros(nbytes, dtype=torch.uint8)
        return warm["room"]

    def encode() -> codecs.Blob:
        blob = codecs.encode(sample.tensor, codec, bound, axis, room)
        if blob.codec != codec.name:
            raise ConfigError(f"expected values that {codec.name} makes smaller, got {sample.name}; they are kept raw")
        return blob

    def decode(blob: codecs.Blob) -> torch.Tensor:
        if "out" not in warm:
            warm["out"] = torch.zeros_like(sample.tensor, memory_format=torch.contiguous_format).view(-1)
        return codecs.decode(blob, warm["out"])

    return Contender(label, codec.is_lossless, encode, decode, lambda blob: blob.nbytes)


def _theirs(rival: rivals.Rival, sample: Sample, eps: float) -> Contender:
    tensor = sample.tensor.contiguous()
    return Contender(rival.name, rival.is_lossless, lambda: rival.encode(tensor, eps), rival.decode, rival.nbytes)


def _row(sample: Sample, contender: Contender, step: float | None, eps: float, rounds: int) -> Row | None:
    """Return the row of a contender, None if it cannot code the sample."""
    try:
        coded = contender.encode()
    except ConfigError:
        return None
    stored = contender.nbytes(coded)
    worst, signs, zeros = _fidelity(sample.tensor, contender.decode(coded), eps)
    encode_speed, decode_speed, memcpy = _speeds(sample, contender, rounds)
    return Row(
        sample=sample.name,
        dtype=str(sample.tensor.dtype).removeprefix("torch."),
        nbytes=sample.nbytes,
        codec=contender.name,
        step=step,
        eps=eps,
        stored=stored,
        bits_per_value=8 * stored / max(1, sample.tensor.numel()),
        encode_speed=encode_speed,
        decode_speed=decode_speed,
        memcpy_gb_per_s=memcpy,
        worst_error=worst,
        signs_kept=signs,
        zeros_kept=zeros,
    )


def _fidelity(original: torch.Tensor, restored: torch.Tensor, eps: float) -> tuple[float, float | None, float | None]:
    """Return worst |error| / eps, the share of signs of non-zero values kept, and the share of zeros kept."""
    worst, same_sign, nonzero, still_zero = 0.0, 0, 0, 0
    parts = zip(original.reshape(-1).split(1 << 22), restored.reshape(-1).split(1 << 22), strict=True)
    for before, after in ((b.double(), a.double()) for b, a in parts):
        worst = max(worst, float((before - after).abs().max()))
        is_nonzero = before != 0
        nonzero += int(is_nonzero.sum())
        same_sign += int((is_nonzero & (before.sign() == after.sign())).sum())
        still_zero += int((~is_nonzero & (after == 0)).sum())
    zeros = original.numel() - nonzero
    error = 0.0 if worst == 0.0 else worst / eps if eps else float("inf")
    return error, same_sign / nonzero if nonzero else None, still_zero / zeros if zeros else None


def _speeds(sample: Sample, contender: Contender, rounds: int) -> tuple[float, float, float]:
    """Return the median speeds of encode and decode in multiples of memcpy, and memcpy's own in GB/s."""
    source = sample.tensor
    target = torch.zeros_like(source)  # written once, so that its pages are mapped before the first copy
    copies, encodes, decodes = [], [], []
    started = time.perf_counter()
    while len(copies) < rounds and (not copies or time.perf_counter() - started < SECONDS_PER_ROW):
        copies.append(_seconds(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), sample.nbytes)))
        t0 = time.perf_counter()
        coded = contender.encode()
        t1 = time.perf_counter()
        contender.decode(coded)
        encodes.append(t1 - t0)
        decodes.append(time.perf_counter() - t1)
    over = [statistics.median(c / s for c, s in zip(copies, own, strict=True)) for own in (encodes, decodes)]
    return over[0], over[1], sample.nbytes / statistics.median(copies) / 1e9


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
