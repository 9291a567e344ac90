"""cast: nearest codes, exact values beside them where those are not near enough, flushing or not."""

import math

import contracts
import pytest
import torch

from slimgrad import Absolute, Relative, codecs
from slimgrad.codecs import Cast
from slimgrad.codecs.cast import exact_float64
from slimgrad.errors import ConfigError, CorruptPayload

FORMS = [Cast("bfloat16"), Cast("float8")]


def test_bfloat16_rounds_like_torch() -> None:
    values = torch.randn(70_000, generator=torch.Generator().manual_seed(0)) * 100
    blob = contracts.check_bound("cast", values, Absolute(10))
    assert torch.equal(codecs.decode(blob), values.bfloat16().float())
    assert blob.payload.numel() == 16 + 2 * 70_000


def test_float8_rounds_like_torch() -> None:
    values = torch.randn(70_000, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)
    blob = contracts.check_bound(Cast("float8"), values, Absolute(1))
    scale = 2.0 ** math.ceil(math.log2(float(values.abs().max()) / 448))
    assert torch.equal(codecs.decode(blob), (values / scale).to(torch.float8_e4m3fn).float() * scale)
    assert blob.payload.numel() == 16 + 70_000


@pytest.mark.parametrize("codec", FORMS, ids=str)
@pytest.mark.parametrize("largest", [448.0, 449.0, 1.0, 2.0**-100, 2.0**-120, 2.0**-130, 2.0**100, 3.4e38])
def test_any_scale(codec: Cast, largest: float) -> None:
    values = torch.linspace(-1, 1, 501) * largest
    blob = contracts.check_bound(codec, values, Relative(0.1))
    assert blob.codec == "cast" or largest < 2.0**-117
    contracts.check_round_trip(codec, values, Relative(0.1))


def test_values_that_miss_the_bound_are_kept_exactly() -> None:
    values = torch.ones(1000)
    values[::100] = 1.0 + 2.0**-10
    blob = contracts.check_bound("cast", values, Absolute(2.0**-12))
    assert torch.equal(codecs.decode(blob), values)
    assert blob.payload.numel() == 16 + 2000 + 10 * 8


def test_too_many_of_them_leave_the_tensor_raw() -> None:
    assert codecs.encode(torch.rand(1000) + 1, "cast", Absolute(1e-9)).codec == "raw"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_that_saves_nothing_stays_raw(dtype: torch.dtype) -> None:
    assert codecs.encode(torch.ones(1000, dtype=dtype), "cast", Absolute(1)).codec == "raw"
    assert codecs.encode(torch.ones(1000, dtype=dtype), Cast("float8"), Absolute(1)).codec == "cast"


@pytest.mark.parametrize("codec", FORMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("eps", [1e-45, 1e-40, 1e-38, 1e-7, 1e-3])
def test_flushing_changes_neither_bytes_nor_values(codec: Cast, dtype: torch.dtype, eps: float) -> None:
    tiny = torch.finfo(dtype).tiny
    values = torch.cat([torch.linspace(-3, 3, 200) * tiny, torch.linspace(-0.01, 1, 800)]).to(dtype)
    blob = contracts.check_bound(codec, values, Absolute(eps))
    with contracts.flushed_denormals():
        assert codecs.to_bytes(codecs.encode(values, codec, Absolute(eps))) == codecs.to_bytes(blob)
        flushed = codecs.decode(blob)
    assert contracts.same_bits(flushed, codecs.decode(blob))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float64_of_subnormals_is_exact_while_flushing(dtype: torch.dtype) -> None:
    values = contracts.specials(dtype)
    values = values[torch.isfinite(values)]
    expected = values.double()
    with contracts.flushed_denormals():
        assert torch.equal(exact_float64(values), expected)


def test_the_error_of_a_relative_bound_is_recorded() -> None:
    values = torch.tensor([3.0, -4.0, 0.0, 0.0] * 100)
    assert codecs.encode(values, "cast", Relative(0.1)).eps == pytest.approx(0.1 * math.sqrt(12.5))


def test_an_unknown_type_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"expected one of bfloat16, float8, got 'int4'; write Cast\('bfloat16'\)"):
        Cast("int4")


def test_positions_out_of_order_or_range_are_refused() -> None:
    values = torch.ones(100)
    values[[10, 20]] = torch.nan
    blob = codecs.encode(values, "cast", Absolute(0.1))
    assert blob.payload[16:24].view(torch.int32).tolist() == [10, 20]
    for positions in ([20, 10], [10, 10], [10, 100], [-1, 20]):
        blob.payload[16:24] = torch.tensor(positions, dtype=torch.int32).view(torch.uint8)
        with pytest.raises(CorruptPayload, match="cast"):
            codecs.decode(blob)
