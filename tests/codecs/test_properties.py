"""The contract over drawn tensors: every codec, dtype, shape, stride, scale from subnormal to huge, and bound.

Draws are the same in every run; `-m slow` draws many more, from a new seed each time, which a failure prints.
"""

import math

import contracts
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slimgrad import Absolute, Relative, codecs
from slimgrad.codecs import Cast, Nested

EXPONENTS = {  # of the smallest and of the largest finite value
    torch.float32: (-149, 127),
    torch.float16: (-24, 15),
    torch.bfloat16: (-133, 127),
    torch.float64: (-1074, 1023),
}
INTEGERS = [torch.uint8, torch.int16, torch.int32, torch.int64]
CONFIGURED = {"nested": [Nested(), Nested(centred=True)], "cast": [Cast(), Cast("float8")]}
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
thorough = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
every_codec = pytest.mark.parametrize("name", codecs.names())


def dtypes_of(name: str) -> list[torch.dtype]:
    return sorted(codecs.get(name).dtypes or {*EXPONENTS, *INTEGERS}, key=str)


@st.composite
def shapes(draw) -> tuple[int, ...]:
    if draw(st.integers(0, 5)) == 0:
        return (draw(st.integers(16000, 40000)),)  # more than one block
    return tuple(draw(st.lists(st.integers(0, 9), max_size=5)))


def values_of(kind: str, count: int, seed: int) -> torch.Tensor:
    """Return float64 values of order 1."""
    rng = torch.Generator().manual_seed(seed)
    normal = torch.randn(count, generator=rng, dtype=torch.float64)
    return {
        "relu": normal.clamp(min=0),
        "normal": normal,
        "dense": normal * 0.1 + 3,
        "heavy": normal**7,
        "few": (normal * 2).round(),
        "two": (normal > 0.5).double() * 1.25,
        "sparse": normal * (normal > 1.5),
        "constant": torch.full((count,), 0.75, dtype=torch.float64),
        "zero": torch.zeros(count, dtype=torch.float64),
    }[kind]


KINDS = ["relu", "normal", "dense", "heavy", "few", "two", "sparse", "constant", "zero"]


@st.composite
def tensors(draw, dtypes: list[torch.dtype]) -> tuple[torch.Tensor, float]:
    """Draw a tensor in some layout, and its scale."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(shapes())
    count = math.prod(shape)
    low, high = EXPONENTS.get(dtype, (0, 6))
    scale = (
        2.0 ** draw(st.one_of(st.integers(-6, 4), st.integers(low, high))) if low else 2.0 ** draw(st.integers(0, 6))
    )
    values = values_of(draw(st.sampled_from(KINDS)), count, draw(st.integers(0, 2**32 - 1)))
    limit = torch.finfo(dtype).max if dtype in EXPONENTS else min(float(torch.iinfo(dtype).max), 2.0**53)
    flat = (values * scale).clamp(0 if dtype == torch.uint8 else -limit, limit).to(dtype)
    if dtype in EXPONENTS and count and draw(st.booleans()):
        odd = contracts.specials(dtype)
        places = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, odd.numel() - 1)), max_size=6))
        for place, which in places:
            flat[place] = odd[which]
    return laid_out(draw, flat.view(shape)), scale


def laid_out(draw, tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor, or some of them, in a drawn layout."""
    if tensor.dim() == 0:
        return tensor
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    dim = draw(st.integers(0, tensor.dim() - 1))
    kind = draw(st.sampled_from(["plain", "plain", "step", "narrow", "expand", "contiguous"]))
    if kind == "step":
        index = [slice(None)] * tensor.dim()
        index[dim] = slice(None, None, 2)
        return tensor[tuple(index)]
    if kind == "narrow" and tensor.shape[dim] > 1:
        return tensor.narrow(dim, 1, tensor.shape[dim] - 1)
    if kind == "expand" and tensor.shape[dim] > 0:
        return tensor.narrow(dim, 0, 1).expand(*tensor.shape)
    return tensor.contiguous() if kind == "contiguous" else tensor


@st.composite
def bounds(draw, scale: float):
    size = 2.0 ** draw(st.integers(-14, 8))
    if draw(st.booleans()):
        return Relative(size)
    return Absolute(max(5e-324, min(size * scale, 1e300)))


def check_law(name: str, data: st.DataObject) -> None:
    tensor, scale = data.draw(tensors(dtypes_of(name)))
    codec = data.draw(st.sampled_from(CONFIGURED.get(name, [codecs.get(name)])))
    bound = data.draw(bounds(scale))
    axis = data.draw(st.one_of(st.none(), st.integers(0, tensor.dim() - 1))) if tensor.dim() else None
    is_flushing = data.draw(st.booleans())
    blob = contracts.check_round_trip(codec, tensor, bound, axis)
    if not codec.is_lossless:
        contracts.check_bound(codec, tensor, bound, axis)
    if is_flushing:
        with contracts.flushed_denormals():
            assert codecs.to_bytes(codecs.encode(tensor, codec, bound, axis)) == codecs.to_bytes(blob)
            restored = codecs.decode(blob)
        assert contracts.same_bits(restored, codecs.decode(blob)), "flushing changed a restored value"
    with contracts.reference_kernels():
        assert codecs.to_bytes(codecs.encode(tensor, codec, bound, axis)) == codecs.to_bytes(blob), (
            "the reference differs"
        )
        assert contracts.same_bits(codecs.decode(blob), codecs.decode(blob))


@every_codec
@quick
@given(data=st.data())
def test_the_law(name: str, data: st.DataObject) -> None:
    check_law(name, data)


@pytest.mark.slow
@every_codec
@thorough
@given(data=st.data())
def test_the_law_at_length(name: str, data: st.DataObject) -> None:
    check_law(name, data)
