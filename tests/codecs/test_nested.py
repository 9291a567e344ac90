"""nested: what the code promises beyond the contract: size, zeros and signs, channels, forms, recorded error."""

import math

import contracts
import pytest
import torch

from slimgrad import Absolute, Relative, codecs
from slimgrad.codecs import Nested

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits_per_value(blob: codecs.Blob) -> float:
    return 8 * blob.nbytes / blob.numel


@every_float
@pytest.mark.parametrize(("step", "nbits"), [(0.5, 2.1), (1.0, 1.75), (1.5, 1.6)])
def test_the_size_on_relu_of_normal_values(dtype: torch.dtype, step: float, nbits: float) -> None:
    blob = contracts.check_bound("nested", normal(1 << 20).relu().to(dtype), Absolute(step / 2))
    assert bits_per_value(blob) <= nbits


@pytest.mark.parametrize("rel", [0.25, 0.05, 0.01])
def test_fine_steps_stay_close_to_the_entropy(rel: float) -> None:
    """That of a normal value is 2.05 - log2(2 rel) bits; plane 0, all ones here, costs one more."""
    blob = contracts.check_bound("nested", normal(1 << 18), Relative(rel))
    assert bits_per_value(blob) <= 2.05 - math.log2(2 * rel) + 1.2


@every_float
def test_zeros_and_signs_are_exact_at_any_step(dtype: torch.dtype) -> None:
    values = (normal(40_000) * torch.logspace(-6, 3, 40_000)).to(dtype)
    values[::5] = 0
    for bound in (Absolute(100.0), Absolute(1.0), Relative(2.0), Relative(0.1)):
        restored = codecs.decode(codecs.encode(values, "nested", bound))
        assert torch.equal(restored.sign(), values.sign())


def test_minus_zero_comes_back_as_zero() -> None:
    values = normal(1000).relu()
    values[::3] = -0.0
    restored = codecs.decode(codecs.encode(values, "nested", Absolute(0.5)))
    assert bool((restored[::3] == 0).all())


@every_float
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("codec", [Nested(), Nested(centred=True)], ids=["signs", "centred"])
def test_every_channel_has_its_own_step(codec: Nested, memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    sizes = torch.tensor([1e-3, 1.0, 30.0, 0.0, 7.0]).view(1, 5, 1, 1)
    values = (normal(4, 5, 33, 17) * sizes).to(dtype).to(memory_format=memory_format)
    blob = contracts.check_bound(codec, values, Relative(0.25), axis=1)
    contracts.check_round_trip(codec, values, Relative(0.25), axis=1)
    assert blob.codec == "nested"
    contracts.check_deterministic(codec, values, Relative(0.25), axis=1)


def test_a_channel_of_small_values_is_lost_without_its_own_step() -> None:
    values = normal(4, 2, 50, 50).abs() * torch.tensor([1e-3, 1.0]).view(1, 2, 1, 1)
    own = codecs.decode(codecs.encode(values, "nested", Relative(0.25), axis=1))
    shared = codecs.decode(codecs.encode(values, "nested", Relative(0.25)))
    error = [float((restored - values)[:, 0].abs().max()) for restored in (own, shared)]
    assert error[0] < 0.001 < 0.1 < error[1]


def test_centring_pays_for_values_far_from_zero() -> None:
    values = normal(200_000) + 8
    plain, centred = (codecs.encode(values, Nested(centred=flag), Absolute(0.5)) for flag in (False, True))
    assert centred.nbytes < 0.6 * plain.nbytes
    contracts.check_bound(Nested(centred=True), values, Absolute(0.5))


@every_float
def test_outliers_are_kept_exactly(dtype: torch.dtype) -> None:
    values = normal(20_000).relu().to(dtype)
    outliers = torch.tensor([50.0, -33.3, torch.nan, -torch.inf, 47.1]).to(dtype)
    values[100:105] = outliers
    blob = contracts.check_bound("nested", values, Absolute(0.25))
    assert contracts.same_bits(codecs.decode(blob)[100:105], outliers)
    assert bits_per_value(blob) < 3.2


def test_sampling_keeps_the_error_that_the_blob_records() -> None:
    values = normal(1 << 18).relu()
    blob = codecs.encode(values, Nested(sampled=True), Relative(0.5))
    error = float((codecs.decode(blob) - values).abs().max())
    rms = float(values[values > 0].square().mean().sqrt())
    assert error <= blob.eps
    assert blob.eps == pytest.approx(0.5 * rms, rel=0.1)


@every_float
@pytest.mark.parametrize("count", [1, 63, 64, 65, 16383, 16384, 16385, 50_001])
def test_odd_lengths(dtype: torch.dtype, count: int) -> None:
    for codec in (Nested(), Nested(centred=True)):
        contracts.check_bound(codec, normal(count).to(dtype), Relative(0.3))
        contracts.check_round_trip(codec, normal(count).to(dtype), Relative(0.3))


@every_float
@pytest.mark.parametrize("codec", [Nested(), Nested(centred=True)], ids=["signs", "centred"])
@pytest.mark.parametrize("scale", [2.0**-140, 2.0**-126, 2.0**-24, 1e-4, 1e4, 2.0**100, 2.0**120])
def test_flushing_changes_neither_bytes_nor_values(codec: Nested, scale: float, dtype: torch.dtype) -> None:
    values = (normal(5000).double() * scale).to(dtype)
    for bound in (Relative(0.3), Absolute(scale / 50), Relative(0.001)):
        blob = contracts.check_bound(codec, values, bound)
        with contracts.flushed_denormals():
            assert codecs.to_bytes(codecs.encode(values, codec, bound)) == codecs.to_bytes(blob)
            flushed = codecs.decode(blob)
        assert contracts.same_bits(flushed, codecs.decode(blob))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_noise_never_costs_more_than_raw(scale: float) -> None:
    values = normal(100_000) * scale
    for bound in (Absolute(1e-45), Absolute(scale * 1e-7), Relative(1e-6), Relative(1e-4)):
        assert contracts.check_bound("nested", values, bound).nbytes <= values.numel() * 4 * 1.005 + 64
