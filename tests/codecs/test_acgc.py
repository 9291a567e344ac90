"""acgc: the published number of bits, the bound for every value, and bytes that are counted honestly."""

import re
from pathlib import Path

import contracts
import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from slimgrad import Absolute, ConfigError, CorruptPayload, Relative, codecs
from slimgrad.codecs.acgc import HEAD, Acgc, bits_for

FORMS = [Acgc(), Acgc(zvc=False)]
both_forms = pytest.mark.parametrize("codec", FORMS, ids=["zvc", "plain"])


class PerChannel:
    """A bound with one eps per channel, as AcGc gives for batch norm."""

    needs_rms = False

    def __init__(self, *per_channel: float) -> None:
        self.per_channel = per_channel

    def eps(self, rms: float) -> float:
        return min(self.per_channel)


def maps(seed: int = 0, shape: tuple[int, ...] = (4, 6, 9, 7)) -> torch.Tensor:
    """Channels of very different size, half of the values zero."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).relu_()
    return x * 10.0 ** torch.arange(-2, shape[1] - 2).view(1, -1, *[1] * (len(shape) - 2))


def published_bits(peak: float, dx: float) -> int:
    """The formula as it is printed, in logarithms."""
    scale = 1 / (torch.tensor(peak, dtype=torch.float64) + 1e-6)
    f = -torch.log2(torch.tensor(dx, dtype=torch.float64)) - torch.log2(scale) - 1
    return int(torch.trunc(f).clamp(1, 15)) + 1


@pytest.mark.parametrize("peak", [0.0, 1e-5, 0.03, 0.99, 1.0, 7.7, 1234.5])
@pytest.mark.parametrize("dx", [1e-9, 3e-5, 0.001, 0.0123, 0.3, 5.0, 1e6])
def test_the_number_of_bits_is_the_published_one(peak: float, dx: float) -> None:
    ranges = torch.tensor([peak + 1e-6], dtype=torch.float64)
    assert int(bits_for(ranges, torch.tensor([dx], dtype=torch.float64))) == published_bits(peak, dx)


def test_bits_by_hand() -> None:
    # range 1, eps 1/100: f = log2(100) - 1 = 5.64, so 5 fraction bits and 6 in all: a step of 1/64, an error of 1/128
    assert bits_for(torch.tensor([1.0]), torch.tensor([0.01])).tolist() == [6]
    assert bits_for(torch.tensor([1.0]), torch.tensor([0.0])).tolist() == [16]


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bound", [Absolute(0.05), Absolute(3.0), Relative(0.01)])
def test_the_bound_holds(codec: Acgc, dtype: torch.dtype, bound) -> None:
    for x in (maps().to(dtype), (maps() - 0.5).to(dtype), maps().to(dtype, memory_format=torch.channels_last)):
        contracts.check_bound(codec, x, bound, axis=1)
        contracts.check_round_trip(codec, x, bound, axis=1)


def test_a_bound_per_channel_holds_in_each() -> None:
    eps = [1e-4, 1e-3, 0.02, 0.3, 3.0, 30.0]
    x = maps()
    blob = codecs.encode(x, Acgc(), PerChannel(*eps), axis=1)
    worst = (codecs.decode(blob) - x).abs().amax((0, 2, 3))
    assert blob.codec == "acgc"
    assert bool((worst <= torch.tensor(eps)).all())
    assert bool((worst > torch.tensor(eps) / 4).all()), "no channel is coded much finer than it was asked"


def test_per_channel_bounds_of_another_tensor_are_all_kept() -> None:
    contracts.check_bound(Acgc(), maps(), PerChannel(0.5, 0.01), axis=1)


@both_forms
def test_layouts_and_specials(codec: Acgc) -> None:
    contracts.check_layouts(codec, maps(), Absolute(0.1))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for bound in (Absolute(0.01), Absolute(1e30), Relative(0.3)):
            contracts.check_specials(codec, dtype, bound)
            with contracts.flushed_denormals():
                contracts.check_specials(codec, dtype, bound)


@both_forms
def test_the_same_bytes_everywhere(codec: Acgc) -> None:
    contracts.check_deterministic(codec, maps(shape=(3, 6, 20, 30)), Relative(0.1), axis=1)


@both_forms
def test_damage(codec: Acgc) -> None:
    x = maps(shape=(2, 4, 5, 5))
    contracts.check_torn(codec, x, Absolute(0.5))
    contracts.check_fuzz(codec, x, Absolute(0.5), rounds=300)
    contracts.check_fuzz(codec, x - 1, Absolute(0.5), rounds=300)


@hypothesis.given(
    values=st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=60),
    eps=st.floats(1e-12, 1e12),
    zvc=st.booleans(),
)
@hypothesis.settings(max_examples=100, deadline=None)
def test_any_values_and_any_bound(values: list[float], eps: float, zvc: bool) -> None:
    contracts.check_bound(Acgc(zvc), torch.tensor(values * 20), Absolute(eps))


def test_bytes_of_plain_codes() -> None:
    """Header, a byte and a step per channel, then exactly the published bits, and one more each for a sign."""
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 0.9
    x[0, :, 0, 0] = 0.9
    eps = 0.02  # 0.9 / 0.02 = 45 = 0.703 * 2^6: bits = 6 - 2 + 1
    for tensor, bits in ((x, 5), (torch.cat([x[:4], -x[4:]]), 6)):
        blob = codecs.encode(tensor, Acgc(zvc=False), Absolute(eps), axis=1)
        n_exact = HEAD.unpack(blob.payload[: HEAD.size].numpy().tobytes())[5]
        assert n_exact <= 0.02 * x.numel()  # the ends of the range: 31.5 / 32 of it and more
        assert blob.payload.numel() == HEAD.size + 3 * 5 + 8 * n_exact + x.numel() * bits // 8


def test_zero_values_cost_one_bit() -> None:
    x = torch.rand(1, 1, 100, 100, generator=torch.Generator().manual_seed(0)) + 0.5
    x.view(-1)[:9000] = 0
    plain, zvc = (codecs.encode(x, codec, Absolute(0.01), axis=1) for codec in (Acgc(zvc=False), Acgc()))
    n_exact = HEAD.unpack(zvc.payload[: HEAD.size].numpy().tobytes())[5]
    assert zvc.payload.numel() == HEAD.size + 5 + 8 * n_exact + (10_000 + 1000 * 7) // 8
    assert plain.payload.numel() == HEAD.size + 5 + 8 * n_exact + 10_000 * 7 // 8
    assert torch.equal(codecs.decode(zvc), codecs.decode(plain))


def test_zero_values_are_not_skipped_where_that_costs_more() -> None:
    x = torch.rand(1, 1, 100, 100, generator=torch.Generator().manual_seed(0)) + 0.5
    sizes = {codecs.encode(x, codec, Absolute(0.01)).nbytes for codec in FORMS}
    assert len(sizes) == 1


def test_a_channel_at_the_end_of_its_range_gets_another_bit() -> None:
    """Equal values all lie at the end of the range, where the published code saturates."""
    x = torch.full((2, 2, 32, 32), 1.0)
    blob = contracts.check_bound(Acgc(), x, Absolute(0.07), axis=1)
    assert blob.codec == "acgc"
    assert blob.nbytes * 8 / x.numel() < 4.5  # 1/0.07 = 14.3: bits = 4 - 2 + 1 = 3, and one


def test_what_sixteen_bits_cannot_do_stays_raw() -> None:
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    assert codecs.encode(x, Acgc(), Absolute(1e-7)).codec == "raw"
    assert codecs.encode(x, Acgc(), Absolute(1e-5)).codec == "acgc"


def test_a_payload_says_its_bound() -> None:
    assert codecs.encode(maps(), Acgc(), PerChannel(*[0.1] * 5, 0.7), axis=1).eps == 0.7
    with pytest.raises(CorruptPayload, match="expected a header of 28 bytes, got 3"):
        Acgc().eps_of(torch.zeros(3, dtype=torch.uint8))


def test_the_only_option_is_checked() -> None:
    with pytest.raises(ConfigError, match="expected zvc=True or zvc=False, got 8"):
        Acgc(zvc=8)  # type: ignore[arg-type]


PAGE = Path(__file__).resolve().parents[2] / "docs" / "format_acgc.md"
EXAMPLES = re.findall(r"^```hex\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["zvc", "plain"])
def test_the_examples_of_the_format_mean_what_they_say(example: str) -> None:
    first, *lines = example.splitlines()
    blob = eval(first.removeprefix("# "), {"torch": torch, "codecs": codecs, "Acgc": Acgc, "Absolute": Absolute})
    data = bytes.fromhex("".join(line.split("  ")[0] for line in lines))
    assert codecs.to_bytes(blob) == data
    assert contracts.same_bits(codecs.decode(codecs.from_bytes(data)), codecs.decode(blob))
