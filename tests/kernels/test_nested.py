"""nested: the compiled kernels equal the reference, byte for byte, for every instruction set and number of threads."""

from __future__ import annotations

import pathlib

import contracts
import pytest
import torch

from slimgrad import codecs
from slimgrad.bounds.fixed import Relative
from slimgrad.errors import CorruptPayload
from slimgrad.kernels import library, native, reference
from slimgrad.kernels.reference.nested_choice import NestedWish

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ISAS = ["portable", "avx2", "avx512"]
SIZES = [0, 1, 31, 63, 64, 65, 1023, 16383, 16384, 16385, 50001]
KINDS = {
    "relu": lambda n: torch.relu(torch.randn(n)),
    "signed": lambda n: torch.randn(n),
    "heavy tail": lambda n: torch.randn(n) / (torch.rand(n) + 1e-4),
    "zeros": lambda n: torch.zeros(n),
    "specials": lambda n: torch.randn(n).where(torch.rand(n) > 0.01, torch.nan).where(torch.rand(n) > 0.01, -torch.inf),
    "subnormal": lambda n: torch.randn(n) * 1e-41,
    "huge": lambda n: torch.randn(n) * 1e37,
    "offset": lambda n: torch.randn(n) + 1000.0,
    "patches": lambda n: torch.randn(n // 23 + 1).sub(0.5).relu().repeat_interleave(23)[:n] * torch.rand(n).add(0.5),
}
WISHES = {
    "coarse": NestedWish(1, 1, False, False, 0.5, 0.0),
    "fine": NestedWish(1, 1, False, False, 0.01, 0.0),
    "absolute": NestedWish(1, 1, False, False, 0.0, 0.1),
    "per channel": NestedWish(7, 13, False, False, 0.25, 0.0),
    "centred": NestedWish(1, 1, True, False, 0.5, 0.0),
    "centred per channel": NestedWish(5, 100, True, True, 0.25, 0.0),
    "centred channels last": NestedWish(96, 1, True, False, 0.5, 0.0),
    "centred fine": NestedWish(3, 64, True, False, 0.02, 0.0),
}


@pytest.fixture(params=ISAS)
def isa(request):
    if not native.is_available():
        pytest.fail(f"the tests need the compiled library: {native.why_unavailable()}")
    before = native.isa()
    if library.library().slimgrad_use_isa(request.param.encode()) != 0:
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    native.use_isa(before)


def payload_of(kernels, x, wish):
    out = torch.full((x.numel() * 5 + 4096 + 8 * wish.channels,), 0xAA, dtype=torch.uint8)
    return out[: kernels.pack_nested(x, wish, out)].clone()


def unpacked(kernels, payload, x):
    out = torch.full_like(x, 77.0)
    kernels.unpack_nested(payload, out)
    return out


def bits_equal(a, b):
    width = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(width), b.view(width))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
@pytest.mark.parametrize("kind", KINDS)
def test_native_equals_reference(isa, dtype, wish, kind):
    torch.manual_seed(0)
    for n in SIZES if kind == "relu" else [1023, 16385]:
        x = KINDS[kind](n).to(dtype)
        expected = payload_of(reference, x, wish)
        got = payload_of(native, x, wish)
        assert torch.equal(got, expected), f"{n} values: {got.numel()} bytes, expected {expected.numel()}"
        if expected.numel():
            assert bits_equal(unpacked(native, got, x), unpacked(reference, expected, x)), f"{n} values"


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_bytes_do_not_depend_on_threads(isa, wish):
    x = torch.randn(300_000)
    one = payload_of(native, x, wish)
    values = unpacked(native, one, x)
    with contracts.torch_threads(2):
        two = payload_of(native, x, wish)
        assert torch.equal(one, two)
        assert bits_equal(unpacked(native, two, x), values)


def test_flush_denormal_changes_nothing(isa):
    x = torch.randn(5000) * 1e-40
    wish = WISHES["coarse"]
    expected = payload_of(native, x, wish)
    try:
        torch.set_flush_denormal(True)
        assert torch.equal(payload_of(native, x, wish), expected)
        assert torch.equal(payload_of(reference, x, wish), expected)
        back = unpacked(native, expected, torch.empty(5000))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(torch.sign(back), torch.sign(x))


def test_unaligned_input_and_output(isa):
    x = torch.relu(torch.randn(20_001))
    wish = WISHES["coarse"]
    room = torch.empty(100_000, dtype=torch.uint8)
    used = native.pack_nested(x[1:], wish, room[3:])
    out = torch.zeros(20_001)
    native.unpack_nested(room[3 : 3 + used], out[1:])
    assert bits_equal(out[1:], unpacked(reference, payload_of(reference, x[1:], wish), x[1:]))
    assert out[0] == 0


@pytest.mark.parametrize("kernels", [reference, native], ids=["reference", "native"])
def test_worked_example_of_the_format(kernels):
    text = pathlib.Path(__file__).parents[2].joinpath("docs/format_nested.md").read_text()
    block = text.split("## Worked example")[1].split("```")[1]
    octets = "".join(line.split("   ")[0] for line in block.splitlines())  # three spaces set the explanation apart
    payload = torch.frombuffer(bytearray.fromhex(octets), dtype=torch.uint8)
    out = torch.empty(6)
    kernels.unpack_nested(payload, out)
    assert out.tolist() == [0, 0.5, 0, 1.5, 3.0, 0]


@pytest.mark.parametrize("kernels", [reference, native], ids=["reference", "native"])
@pytest.mark.parametrize(
    "at, value",
    [(0, 2), (0, 4), (1, 2), (1, 4), (2, 0), (2, 16), (3, 13), (4, 0), (8, 0), (20, 1), (24, 0), (31, 128)],
)
def test_header_fields_out_of_range_are_rejected(kernels, at, value):
    payload = payload_of(native, torch.randn(1000), WISHES["coarse"])
    payload[at] = value
    if at in (4, 8):
        payload[at : at + 4] = 0
    with pytest.raises(CorruptPayload, match="nested"):
        unpacked(kernels, payload, torch.empty(1000))


def test_rice_is_close_to_the_entropy_at_fine_steps():
    x = torch.randn(200_000)
    blob = codecs.encode(x, "nested", bound=Relative(0.05))
    restored = codecs.decode(blob)
    _, counts = restored.unique(return_counts=True)
    p = counts.double() / x.numel()
    entropy = float(-(p * p.log2()).sum())
    assert blob.nbytes * 8 / x.numel() < entropy + 1.3
