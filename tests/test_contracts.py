"""Every check of contracts.py passes a right codec and goes red for one that breaks its law."""

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import contracts
import pytest
import torch

from slimgrad import Absolute, codecs
from slimgrad.codecs.base import Codec
from slimgrad.errors import CorruptPayload

BOUND = Absolute(0.25)
VALUES = torch.arange(-150, 151) / 5


class Halved(Codec):
    """A right codec: float32 as bfloat16 where that keeps the bound. The wrong ones differ from it in one thing."""

    name = "halved"
    tag = 200
    is_lossless = False
    dtypes = frozenset({torch.float32})

    def encode(self, flat, bound, channels, room):
        codes = flat.bfloat16()
        if flat.numel() == 0 or not bool(((codes.double() - flat.double()).abs() <= bound.eps(1.0)).all()):
            return None
        payload = room(2 * flat.numel())[: 2 * flat.numel()]
        payload.copy_(codes.view(torch.uint8))
        return payload

    def decode(self, payload, out):
        if payload.numel() != 2 * out.numel():
            raise CorruptPayload(f"halved: expected {2 * out.numel()} bytes, got {payload.numel()}")
        out.copy_(payload.clone().view(torch.bfloat16))

    def eps_of(self, payload):
        return BOUND.value


class Lossless(Halved):
    is_lossless = True


class Overwriting(Halved):
    def encode(self, flat, bound, channels, room):
        payload = super().encode(flat, bound, channels, room)
        flat[0] += 1
        return payload


class TooFar(Halved):
    def decode(self, payload, out):
        super().decode(payload, out)
        out += 0.24  # within the bound for most values, beyond it for those that bfloat16 moved up


class MovesZero(Halved):
    def decode(self, payload, out):
        super().decode(payload, out)
        out += 1e-3


class Understated(Halved):
    def eps_of(self, payload):
        return 1e-6


class PlainNan(Halved):
    def encode(self, flat, bound, channels, room):
        return super().encode(flat.nan_to_num(), bound, channels, room)


class EvenLengths(Halved):
    def encode(self, flat, bound, channels, room):
        payload = super().encode(flat, bound, channels, room)
        if payload is not None and flat.numel() % 2:
            payload[-2:] = 0x7F
        return payload


class Threaded(Halved):
    def encode(self, flat, bound, channels, room):
        payload = super().encode(flat, bound, channels, room)
        if payload is not None:
            payload[0] = torch.get_num_threads()
        return payload


class Trusting(Halved):
    def decode(self, payload, out):
        out.copy_(payload.clone().view(torch.bfloat16))  # RuntimeError when there are too few


CHECKS: dict[str, Callable[[type[Codec]], object]] = {
    "round_trip": lambda codec: contracts.check_round_trip(codec(), VALUES.clone(), BOUND),
    "bound": lambda codec: contracts.check_bound(codec(), VALUES, BOUND),
    "layouts": lambda codec: contracts.check_layouts(codec(), VALUES, BOUND),
    "specials": lambda codec: contracts.check_specials(codec(), torch.float32, BOUND),
    "deterministic": lambda codec: contracts.check_deterministic(codec(), VALUES, BOUND),
    "torn": lambda codec: contracts.check_torn(codec(), VALUES, BOUND),
    "fuzz": lambda codec: contracts.check_fuzz(codec(), VALUES, BOUND),
}
WRONG = [
    ("round_trip", Lossless),
    ("round_trip", Overwriting),
    ("bound", TooFar),
    ("bound", MovesZero),
    ("bound", Understated),
    ("layouts", EvenLengths),
    ("layouts", TooFar),
    ("specials", PlainNan),
    ("deterministic", Threaded),
    ("torn", Trusting),
    ("fuzz", Trusting),
]


@pytest.fixture
def registered() -> Iterator[Callable[[type[Codec]], type[Codec]]]:
    def register(codec: type[Codec]) -> type[Codec]:
        codecs.CODECS[codec.name] = codec
        return codec

    with mock.patch.dict(codecs.CODECS):
        yield register


@pytest.mark.parametrize("check", CHECKS)
def test_a_right_codec_passes(registered, check: str) -> None:
    CHECKS[check](registered(Halved))


@pytest.mark.parametrize(("check", "codec"), WRONG)
def test_a_wrong_codec_fails(registered, check: str, codec: type[Codec]) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[check](registered(codec))


@pytest.mark.parametrize("check", ["torn", "fuzz"])
def test_a_blob_that_fell_to_raw_is_no_evidence(registered, check: str) -> None:
    tight = Absolute(1e-30)
    run = {"torn": contracts.check_torn, "fuzz": contracts.check_fuzz}[check]
    with pytest.raises(AssertionError, match="nothing would be tested"):
        run(registered(Halved)(), VALUES, tight)


def test_another_layout_is_seen() -> None:
    tensor = torch.zeros(2, 3, 4, 5)
    contracts.check_same_layout(tensor.clone(), tensor)
    for other in (tensor.to(memory_format=torch.channels_last), tensor.double(), tensor[:1]):
        with pytest.raises(AssertionError):
            contracts.check_same_layout(other, tensor)


def test_golden_bytes(registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(Halved)
    monkeypatch.setattr(contracts, "GOLDEN", tmp_path)
    with pytest.raises(AssertionError, match="write it with"):
        contracts.check_golden("some", "halved", VALUES, BOUND)
    data = codecs.to_bytes(codecs.encode(VALUES, "halved", BOUND))
    (tmp_path / "some.bin").write_bytes(data)
    contracts.check_golden("some", "halved", VALUES, BOUND)
    (tmp_path / "some.bin").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(AssertionError, match="another meaning"):
        contracts.check_golden("some", "halved", VALUES, BOUND)


def test_golden_bytes_of_an_encoder_that_changed(registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slack(Halved):
        """Writes a byte more and still reads the old form."""

        def encode(self, flat, bound, channels, room):
            return torch.cat([super().encode(flat, bound, channels, room), torch.zeros(1, dtype=torch.uint8)])

        def decode(self, payload, out):
            super().decode(payload[: 2 * out.numel()], out)

    monkeypatch.setattr(contracts, "GOLDEN", tmp_path)
    registered(Halved)
    (tmp_path / "some.bin").write_bytes(codecs.to_bytes(codecs.encode(VALUES, "halved", BOUND)))
    registered(Slack)
    contracts.check_golden("some", "halved", VALUES, BOUND, writes=False)
    with pytest.raises(AssertionError, match="writes other bytes"):
        contracts.check_golden("some", "halved", VALUES, BOUND)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_specials_are_what_they_are_called(dtype: torch.dtype) -> None:
    odd, info = contracts.specials(dtype), torch.finfo(dtype)
    assert int(odd.isnan().sum()) == 8
    assert int(odd.isinf().sum()) == 2
    assert len(set(contracts.bits_of(odd).tolist())) == odd.numel()
    for value in (info.max, info.min, info.tiny, info.smallest_normal, 1.0):
        assert value in odd.tolist()
    assert int(((odd != 0) & (odd.abs() < info.tiny)).sum()) == 8


def test_exact_sees_subnormals_through_flushing() -> None:
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    with contracts.flushed_denormals():
        assert float(tiny.double()) == 0.0
        assert float(contracts.exact(tiny)) == 2.0**-149
        assert float(tiny.double()) == 0.0, "flushing is on again"
    assert float(tiny.double()) == 2.0**-149
