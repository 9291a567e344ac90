"""The laws of codecs/base.py as checks that every codec's tests call. Each check asserts by itself.

    check_round_trip(codec, tensor, bound)     shape, dtype, layout, size, and the same again through bytes
    check_bound(codec, tensor, bound)          |restored - original| <= bound in float64; inf and nan bit for bit
    check_layouts / check_specials             the two over awkward layouts and awkward values
    check_deterministic(codec, tensor, bound)  the same bytes from every kernel, on one thread and on two
    check_torn / check_fuzz                    cut, altered and random bytes: CorruptPayload or the right shape
    check_golden(name, codec, tensor, bound)   the bytes that an earlier version wrote, in tests/golden

test_contracts.py shows each of them a codec that breaks its law.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

from slimgrad import codecs, kernels
from slimgrad.codecs.base import Blob, Bound, Codec
from slimgrad.errors import CorruptPayload
from slimgrad.kernels import native, reference

GOLDEN = Path(__file__).parent / "golden"
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ISAS = ("portable", "avx2", "avx512")


# ---- the checks -----------------------------------------------------------------------------------------------------


def check_round_trip(
    codec: str | Codec, tensor: torch.Tensor, bound: Bound | None = None, axis: int | None = None
) -> Blob:
    """Encode and decode, directly and through bytes; return the blob. A lossless codec gives back every bit."""
    before = bits_of(tensor).clone()
    blob = codecs.encode(tensor, codec, bound, axis)
    assert torch.equal(bits_of(tensor), before), "encode changed its input"
    raw_nbytes = tensor.numel() * tensor.element_size()
    assert blob.nbytes <= raw_nbytes + 64, f"{blob.nbytes} bytes for {raw_nbytes}"
    restored = codecs.decode(blob)
    check_same_layout(restored, tensor)
    data = codecs.to_bytes(blob)
    assert len(data) == blob.nbytes
    again = codecs.from_bytes(data)
    assert dataclasses.replace(again, payload=blob.payload) == blob
    assert same_bits(codecs.decode(again), restored), "decode is not repeatable"
    if codecs.get(codec).is_lossless or blob.codec == "raw":
        assert same_bits(restored, tensor), f"{blob.codec} lost bits"
    return blob


def check_same_layout(restored: torch.Tensor, tensor: torch.Tensor) -> None:
    """The restored tensor has shape, dtype and, where the original was dense, the same order in memory."""
    assert restored.shape == tensor.shape
    assert restored.dtype == tensor.dtype
    if is_dense(tensor) and tensor.numel() > 0:
        pairs = zip(tensor.shape, restored.stride(), tensor.stride(), strict=True)
        assert all(size == 1 or ours == theirs for size, ours, theirs in pairs), (restored.stride(), tensor.stride())


def check_bound(codec: str | Codec, tensor: torch.Tensor, bound: Bound, axis: int | None = None) -> Blob:
    """Every finite value within the bound, everything else bit for bit, zeros and signs as the code promises."""
    codec = codecs.get(codec)
    blob = codecs.encode(tensor, codec, bound, axis)
    restored = codecs.decode(blob)
    is_finite = finite(tensor)
    assert bool(finite(restored)[is_finite].all()), "a finite value came back as inf or nan"
    assert same_bits(restored[~is_finite], tensor[~is_finite]), "inf or nan did not come back bit for bit"
    original, again = exact(tensor[is_finite]), exact(restored[is_finite])
    error = (original - again).abs()
    excess = error - allowed_error(codec, tensor, bound, axis).expand(tensor.shape)[is_finite]
    assert bool((excess <= 0).all()), f"{int((excess > 0).sum())} values off by up to {float(excess.max()):g} too much"
    assert float(error.max() if error.numel() else 0.0) <= blob.eps * (1 + 1e-6), f"blob.eps says {blob.eps}"
    if not getattr(codec, "centred", False):
        assert bool((again[original == 0] == 0).all()), "a zero did not come back as zero"
        if codec.name == "nested":
            assert bool((again.sign() == original.sign()).all()), "a sign was lost"
    return blob


def check_layouts(codec: str | Codec, values: torch.Tensor, bound: Bound | None = None) -> None:
    """Round trips of `values` (any, at least 240) in awkward shapes and strides."""
    for tensor in layouts_of(values):
        check_round_trip(codec, tensor, bound)
        if bound is not None and not codecs.get(codec).is_lossless:
            check_bound(codec, tensor, bound)


def check_specials(codec: str | Codec, dtype: torch.dtype, bound: Bound | None = None) -> None:
    """Round trips of NaN with payloads, infinities, zeros, subnormals and extremes, alone and among plain values."""
    odd = specials(dtype)
    plain = torch.linspace(-2, 2, 1000).relu().to(dtype)
    for tensor in (odd, odd.repeat(40), torch.cat([plain, odd, plain]), odd[:1], torch.cat([plain, odd[:1]])):
        check_round_trip(codec, tensor, bound)
        if bound is not None and not codecs.get(codec).is_lossless:
            check_bound(codec, tensor, bound)


def check_deterministic(
    codec: str | Codec, tensor: torch.Tensor, bound: Bound | None = None, axis: int | None = None
) -> None:
    """The same blob from every kernel of this machine, on one thread and on two; and each restores the others'."""
    expected = restored = None
    for name, use in implementations():
        for threads in (1, 2):
            with use(), torch_threads(threads):
                blob = codecs.encode(tensor, codec, bound, axis)
                values = codecs.decode(expected or blob)
            if expected is None:
                expected, restored = blob, values
            where = f"{name} on {threads} threads"
            assert codecs.to_bytes(blob) == codecs.to_bytes(expected), f"other bytes from {where}"
            assert same_bits(values, restored), f"other values from {where}"


def check_torn(codec: str | Codec, tensor: torch.Tensor, bound: Bound | None = None) -> None:
    """A blob cut at any byte is refused or restored to the right shape, from memory and from bytes."""
    blob = codecs.encode(tensor, codec, bound)
    assert blob.codec == codecs.get(codec).name, "the tensor does not pay, so nothing would be tested"
    data = codecs.to_bytes(blob)
    for cut in range(len(data)):
        survives(data[:cut], blob)
    for cut in range(blob.payload.numel()):
        survives(dataclasses.replace(blob, payload=blob.payload[:cut].clone()), blob)


def check_fuzz(
    codec: str | Codec, tensor: torch.Tensor, bound: Bound | None = None, rounds: int = 500, seed: int = 0
) -> None:
    """Altered and random payloads are refused or restored to the right shape."""
    blob = codecs.encode(tensor, codec, bound)
    assert blob.codec == codecs.get(codec).name, "the tensor does not pay, so nothing would be tested"
    rng = random.Random(seed)
    valid = blob.payload.numpy().tobytes()
    header = codecs.to_bytes(blob)[: -len(valid)]
    for round in range(rounds):
        payload = altered(valid, rng)
        whole = header + payload if round % 8 else altered(header + valid, rng)
        survives(whole, blob)


def check_golden(name: str, codec: str | Codec, tensor: torch.Tensor, bound: Bound | None = None, writes=True) -> None:
    """The stored bytes decode to what is coded today; with `writes`, today's encoder writes the same bytes."""
    path = GOLDEN / f"{name}.bin"
    assert path.exists(), f"expected {path}; write it with tests/golden/write.py and commit it"
    blob = codecs.encode(tensor, codec, bound)
    stored = codecs.from_bytes(path.read_bytes())
    assert stored.codec == codecs.get(codec).name
    assert same_bits(codecs.decode(stored), codecs.decode(blob)), f"{name}: the stored bytes have another meaning now"
    if writes:
        assert codecs.to_bytes(blob) == path.read_bytes(), f"{name}: the encoder writes other bytes now"


# ---- what they are made of ------------------------------------------------------------------------------------------


def survives(damaged: bytes | Blob, original: Blob) -> None:
    """Assert that a damaged blob is refused, or restored to the shape and dtype it claims."""
    try:
        blob = codecs.from_bytes(damaged) if isinstance(damaged, bytes) else damaged
        if blob.numel > 4 * original.numel + 64:
            return  # a damaged shape with a valid checksum: nobody has to allocate it
        restored = codecs.decode(blob)
    except CorruptPayload:
        return
    assert restored.shape == blob.shape
    assert restored.dtype == blob.dtype


def altered(data: bytes, rng: random.Random) -> bytes:
    """Return the data with some bits flipped, bytes replaced, a piece moved, or nothing left of it."""
    damaged = bytearray(data)
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(2 * len(data) + 1))
    if kind == 1:
        del damaged[rng.randrange(len(data)) :]
    elif kind == 2:
        damaged += rng.randbytes(rng.randrange(1, 20))
    for _ in range(rng.choice([1, 1, 2, 8])):
        if damaged:  # the front holds most of the structure
            at = rng.randrange(min(len(damaged), rng.choice([16, 64, len(damaged)])))
            damaged[at] = rng.choice([damaged[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)])
    return bytes(damaged)


def allowed_error(codec: Codec, tensor: torch.Tensor, bound: Bound, axis: int | None) -> torch.Tensor:
    """Return the largest error that the bound allows, in a shape that broadcasts to the tensor's."""
    if not bound.needs_rms:
        return torch.tensor(bound.eps(1.0), dtype=torch.float64)
    values = torch.where(finite(tensor), exact(tensor), math.nan)
    others = [
        dim for dim in range(tensor.dim()) if axis is None or codec.name != "nested" or dim != axis % tensor.dim()
    ]
    if getattr(codec, "centred", False):
        values = values - values.nanmean(others, keepdim=True) if others else values * 0
    else:
        values = torch.where(values == 0, math.nan, values)
    rms = (values * values).nanmean(others, keepdim=True).sqrt().nan_to_num(0.0) if others else values.abs()
    return rms.nan_to_num(0.0) * bound.eps(1.0) * (1 + 1e-12)  # the sums here and there differ in their last bits


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as integers, in logical order."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(WORDS[min(tensor.element_size(), 8)])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits_of(a), bits_of(b))


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in float64, whatever torch.set_flush_denormal says."""
    with plain_denormals():
        return tensor.double()


def finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(tensor) if tensor.dtype.is_floating_point else torch.ones_like(tensor, dtype=torch.bool)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the values fill their memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def layouts_of(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors of these values: odd sizes, strided, permuted, overlapping, empty."""
    flat = values.reshape(-1)
    yield from (flat[:n] for n in (0, 1, 2, 31, 32, 33, 63, 64, 65, 239))
    yield flat[0]
    yield flat[1:200]  # not aligned to a vector
    yield flat[:240:3]
    four = flat[:240].view(2, 3, 5, 8)
    yield from (four, four.to(memory_format=torch.channels_last), four.transpose(1, 3), four[:, :, 1:4, ::2])
    yield from (four[:, 1:2].to(memory_format=torch.channels_last), four.permute(3, 1, 0, 2), four[:, :0])
    yield four[:, :, :, :1].expand(2, 3, 5, 7)
    yield flat[:1].expand(40)
    yield flat[:240].view(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d)
    yield flat[:240].view(20, 12).t()


def specials(dtype: torch.dtype) -> torch.Tensor:
    """Return values that are easy to get wrong."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([0, 1, info.max, info.min, info.max - 1, 0, 0], dtype=dtype)
    layout = {torch.float32: (8, 23), torch.float16: (5, 10), torch.bfloat16: (8, 7), torch.float64: (11, 52)}
    n_exponent, n_mantissa = layout[dtype]
    infinity, sign = ((1 << n_exponent) - 1) << n_mantissa, 1 << (n_exponent + n_mantissa)
    one = ((1 << n_exponent) // 2 - 1) << n_mantissa
    nans = [infinity + 1, infinity + 3, infinity + (1 << n_mantissa - 1), infinity + (1 << n_mantissa) - 1]
    smallest = [1, 2, 3, (1 << n_mantissa) - 1, 1 << n_mantissa, (1 << n_mantissa) + 1]
    patterns = [*nans, 0, infinity, infinity - 1, infinity - (1 << n_mantissa), *smallest, one - 1, one, one + 1]
    signed = [pattern - sign if flipped else pattern for pattern in patterns for flipped in (False, True)]
    return torch.tensor(signed, dtype=WORDS[dtype.itemsize]).view(dtype)


def implementations() -> list[tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """Return every source of kernels that this machine has, as (name, a context that uses it)."""
    assert native.is_available(), f"expected the compiled library, but {native.why_unavailable()}; run make native"
    return [("reference", reference_kernels), *((isa, lambda isa=isa: native_kernels(isa)) for isa in known_isas())]


def known_isas() -> list[str]:
    """Return the instruction sets that this machine can run."""
    library = native.library()
    chosen = native.isa()
    known = [isa for isa in ISAS if library.slimgrad_use_isa(isa.encode()) == 0]
    native.use_isa(chosen)
    return known


@contextlib.contextmanager
def reference_kernels() -> Iterator[None]:
    with mock.patch.object(kernels, "active", return_value=reference):
        yield


@contextlib.contextmanager
def native_kernels(isa: str) -> Iterator[None]:
    chosen = native.isa()
    native.use_isa(isa)
    try:
        with mock.patch.object(kernels, "active", return_value=native):
            yield
    finally:
        native.use_isa(chosen)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def plain_denormals() -> Iterator[None]:
    is_flushing = bool(torch.tensor([1e-40]).double().item() == 0.0)
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(is_flushing)
