"""Plane 0 and signs as differences between neighbours: smooth maps cost less, and what is read back was written."""

from __future__ import annotations

import pytest
import torch

from slimgrad import codecs
from slimgrad.bounds import Relative
from slimgrad.codecs import Nested
from slimgrad.errors import CorruptPayload
from slimgrad.kernels import native, reference
from slimgrad.kernels.reference.nested import ENTRY, FIRST_DIFFERS, SIGNS_DIFFER
from slimgrad.kernels.reference.nested_choice import HEADER, NestedWish

KERNELS = pytest.mark.parametrize("kernels", [reference, native], ids=["reference", "native"])
APART = [1, 2, 3, 24, 63, 64, 65, 128, 200, 5000, 16_383, 16_384, 1 << 40]


def payload_of(kernels, x: torch.Tensor, apart: int = 1, centred: bool = False) -> torch.Tensor:
    out = torch.empty(5 * x.numel() + 4096, dtype=torch.uint8)
    wish = NestedWish(1, 1, centred, False, 0.0, 0.5, apart)  # a step of 1
    return out[: kernels.pack_nested(x, wish, out)].clone()


def restored(kernels, payload: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.full((n,), 77.0)
    kernels.unpack_nested(payload, out)
    return out


def index_at(payload: torch.Tensor, centred: bool = False) -> int:
    return HEADER.size + 4 * (2 * int(payload[2]) + 1 + 2 * centred)  # tables; scale and centre


def shape_of(payload: torch.Tensor, centred: bool = False) -> int:
    return ENTRY.unpack_from(payload.numpy().tobytes(), index_at(payload, centred))[2]


def smooth(n: int, apart: int = 1) -> torch.Tensor:
    """Return values of which those that lie `apart` have neighbours of much the same size and sign."""
    rows = -(-n // apart)
    wave = torch.sin(torch.arange(rows) * 0.15 + 0.4).unsqueeze(1) * 2 + torch.rand(1, apart) * 0.1
    return wave.reshape(-1)[:n].contiguous()


@KERNELS
@pytest.mark.parametrize("apart", APART)
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 16_384, 40_000])
def test_what_is_read_back_is_what_was_written(kernels, n: int, apart: int) -> None:
    x = smooth(n, min(apart, n)) * (torch.rand(n) < 0.9)
    again = restored(kernels, payload_of(kernels, x, apart), n)
    assert bool(((again - x).abs() <= 0.5).all())
    assert torch.equal(again.sign(), x.sign())
    assert torch.equal(torch.signbit(again), torch.signbit(x) & (x != 0))  # no zero comes back as -0.0


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("apart", APART)
def test_kernels_write_and_read_the_same(apart: int, dtype: torch.dtype, centred: bool) -> None:
    for n in (1, 64, 130, 16_390):
        x = smooth(n, min(apart, n)).to(dtype)
        payload = payload_of(reference, x, apart, centred)
        assert torch.equal(payload, payload_of(native, x, apart, centred))
        first, second = torch.empty_like(x), torch.empty_like(x)
        reference.unpack_nested(payload, first)
        native.unpack_nested(payload, second)
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def test_smooth_maps_are_written_as_differences_and_take_less() -> None:
    x = smooth(1 << 14)
    near, far = payload_of(native, x), payload_of(native, x, apart=1 << 14)
    assert shape_of(near) & (FIRST_DIFFERS | SIGNS_DIFFER) == FIRST_DIFFERS | SIGNS_DIFFER
    assert near.numel() < 0.75 * far.numel()


def test_noise_is_not() -> None:
    x = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0)).relu()
    assert not shape_of(payload_of(native, x)) & (FIRST_DIFFERS | SIGNS_DIFFER)


def test_a_plane_without_zeros_takes_a_quarter_of_a_bit() -> None:
    x = torch.full((1 << 14,), 0.5)
    payload = payload_of(native, x)
    assert shape_of(payload) & FIRST_DIFFERS
    assert payload.numel() < index_at(payload) + ENTRY.size + x.numel() / 4 / 8 + 16


@pytest.mark.parametrize("codec", [Nested(), Nested(centred=True)])
def test_layouts_do_not_matter(codec: Nested) -> None:
    maps = torch.nn.functional.avg_pool2d(torch.randn(4, 24, 36, 36, generator=torch.Generator().manual_seed(0)), 5, 1)
    last = maps.contiguous(memory_format=torch.channels_last)
    axis = 1 if codec.centred else None
    sizes = [codecs.encode(x, codec, Relative(0.5), axis).nbytes for x in (maps, last)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.15)


def test_nan_and_infinities_come_back() -> None:
    x = smooth(1000)
    x[::50], x[7::90], x[9::90] = float("nan"), float("inf"), -float("inf")
    again = restored(native, payload_of(native, x), 1000)
    assert torch.equal(again.isnan(), x.isnan())
    assert torch.equal(again.isinf() * again.sign(), x.isinf() * x.sign())


@KERNELS
@pytest.mark.parametrize(("value", "bit"), [(0.0, FIRST_DIFFERS), (1.5, SIGNS_DIFFER)])
def test_differences_of_what_is_not_there_are_rejected(kernels, value: float, bit: int) -> None:
    payload = payload_of(native, torch.full((1000,), value))
    payload[index_at(payload) + 5] |= bit
    with pytest.raises(CorruptPayload, match="nested"):
        kernels.unpack_nested(payload, torch.empty(1000))


@KERNELS
def test_differences_that_are_not_grouped_are_rejected(kernels) -> None:
    payload = payload_of(native, torch.randn(1000, generator=torch.Generator().manual_seed(0)).relu())
    assert not shape_of(payload) & FIRST_DIFFERS
    payload[index_at(payload) + 5] |= FIRST_DIFFERS
    with pytest.raises(CorruptPayload, match="nested"):
        kernels.unpack_nested(payload, torch.empty(1000))


@KERNELS
def test_differences_beyond_the_last_value_are_rejected(kernels) -> None:
    payload = payload_of(native, torch.full((1,), 0.5).repeat(257))  # the last word has one value
    assert shape_of(payload) & FIRST_DIFFERS
    flags, groups = index_at(payload) + ENTRY.size, index_at(payload) + ENTRY.size + 12  # one flag and group is set
    payload[flags + 9] |= 1  # that of values 288 to 291
    payload[groups] |= 0xF0
    with pytest.raises(CorruptPayload, match="nested"):
        kernels.unpack_nested(payload, torch.empty(257))
