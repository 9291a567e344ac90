"""The codec layer, and the contract over every codec: one that is registered is tested here without another line."""

import random
import weakref

import codec_cases
import contracts
import pytest
import torch

from slimgrad import Absolute, Exact, Relative, codecs
from slimgrad.codecs.base import Codec
from slimgrad.errors import ConfigError

CASES = codec_cases.all_cases()
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_codec = pytest.mark.parametrize("name", codecs.names())


def dtypes_of(name: str) -> list[torch.dtype]:
    return [dtype for dtype in DTYPES if not codecs.get(name).dtypes or dtype in codecs.get(name).dtypes]


@every_codec
def test_every_codec_has_a_case_that_it_codes(name: str) -> None:
    cases = [case for case in CASES if case.codec_name == name]
    assert cases
    for case in cases:
        assert codecs.encode(case.tensor, case.codec, case.bound).codec == name


def test_names_and_tags_are_the_codecs_own() -> None:
    assert [codec.name for codec in codecs.CODECS.values()] == codecs.names()
    assert sorted(codec.tag for codec in codecs.CODECS.values()) == list(range(len(codecs.CODECS)))


def test_every_subclass_is_registered() -> None:
    ours = [kind for kind in descendants(Codec) if kind.__module__.startswith("slimgrad.")]
    assert {kind.name for kind in ours if hasattr(kind, "name")} == set(codecs.names())


def descendants(kind: type[Codec]) -> list[type[Codec]]:
    return [one for child in kind.__subclasses__() for one in (child, *descendants(child))]


@every_case
def test_round_trip(case) -> None:
    contracts.check_round_trip(case.codec, case.tensor, case.bound)
    if case.bound is not None:
        contracts.check_bound(case.codec, case.tensor, case.bound)


@every_codec
def test_layouts(name: str) -> None:
    for dtype in dtypes_of(name):
        for values in (codec_cases.relu(240) * 10, (codec_cases.scattered(240) % 2) * 3):
            contracts.check_layouts(name, values.to(dtype), Absolute(0.1))


@every_codec
def test_specials(name: str) -> None:
    for dtype in dtypes_of(name):
        for bound in (Absolute(0.01), Absolute(1e-40), Absolute(1e30), Relative(0.3)):
            contracts.check_specials(name, dtype, bound)


@every_case
def test_the_same_bytes_from_every_kernel_and_number_of_threads(case) -> None:
    contracts.check_deterministic(case.codec, case.tensor, case.bound)
    large = torch.cat([case.tensor.reshape(-1)] * 90)  # several blocks, the last one not full
    if case.name != "index_window":
        contracts.check_deterministic(case.codec, large[:40001], case.bound)


@every_case
def test_a_blob_cut_anywhere(case) -> None:
    contracts.check_torn(case.codec, case.tensor, case.bound)


@every_case
def test_damaged_blobs(case) -> None:
    contracts.check_fuzz(case.codec, case.tensor, case.bound, rounds=400)


@every_case
def test_damaged_blobs_in_the_reference(case) -> None:
    with contracts.reference_kernels():
        contracts.check_fuzz(case.codec, case.tensor, case.bound, rounds=100, seed=1)


@pytest.mark.slow
@every_codec
def test_a_hundred_thousand_damaged_blobs(name: str) -> None:
    cases = [case for case in CASES if case.codec_name == name]
    for seed, case in enumerate(cases):
        contracts.check_fuzz(case.codec, case.tensor, case.bound, rounds=100_000 // len(cases), seed=seed)


@every_case
def test_golden_bytes(case) -> None:
    contracts.check_golden(case.name, case.codec, case.tensor, case.bound, writes=case.codec_name != "deflate")


@every_codec
def test_room_is_used_and_may_be_larger(name: str) -> None:
    case = next(case for case in CASES if case.codec_name == name)
    given = []

    def room(nbytes: int) -> torch.Tensor:
        given.append(torch.full((nbytes + 1000,), 0xAA, dtype=torch.uint8))
        return given[-1]

    blob = codecs.encode(case.tensor, case.codec, case.bound, room=room)
    assert blob.payload.untyped_storage().data_ptr() in [place.untyped_storage().data_ptr() for place in given]
    assert codecs.to_bytes(blob) == codecs.to_bytes(codecs.encode(case.tensor, case.codec, case.bound))


@every_codec
def test_decoding_into_given_memory(name: str) -> None:
    case = next(case for case in CASES if case.codec_name == name)
    blob = codecs.encode(case.tensor, case.codec, case.bound)
    place = torch.full((blob.numel,), 1, dtype=blob.dtype)
    restored = codecs.decode(blob, out=place)
    assert restored.data_ptr() == place.data_ptr()
    assert contracts.same_bits(restored, codecs.decode(blob))


@every_codec
def test_what_does_not_pay_is_kept_raw(name: str) -> None:
    noise = torch.frombuffer(bytearray(random.Random(0).randbytes(4000)), dtype=torch.int64)
    is_float = torch.float32 in dtypes_of(name)
    blob = contracts.check_round_trip(name, noise.view(torch.float32) if is_float else noise, Absolute(1e-42))
    assert blob.codec == "raw"
    assert blob.eps == 0.0


def test_a_tensor_that_requires_grad_is_coded_by_value() -> None:
    x = torch.ones(300, requires_grad=True)
    restored = codecs.decode(codecs.encode(x, "zvc"))
    assert not restored.requires_grad
    assert torch.equal(restored, x)


@every_codec
def test_a_lossy_codec_asks_for_a_bound(name: str) -> None:
    if codecs.get(name).is_lossless:
        codecs.encode(torch.arange(9), name)
        return
    for bound in (None, Exact()):
        with pytest.raises(ConfigError, match=r"needs a bound.*Absolute\(0.01\)"):
            codecs.encode(torch.ones(9), name, bound)
    with pytest.raises(ConfigError, match=r"got torch\.int64; use codec='raw' or a lossless codec"):
        codecs.encode(torch.arange(9), name, Absolute(1))


def test_conjugate_and_negative_views_come_back_as_values() -> None:
    x = torch.complex(codec_cases.relu(200), codec_cases.relu(200)).conj()
    for name in ("raw", "zvc", "rle", "deflate"):
        contracts.check_round_trip(name, x)
        contracts.check_round_trip(name, x.imag)


def test_a_blob_holds_no_more_memory_than_its_bytes():
    blob = codecs.encode(torch.relu(torch.randn(100_000)), "nested", bound=Relative(0.5))
    assert blob.payload.untyped_storage().nbytes() == blob.payload.numel() < 100_000


def test_the_room_of_a_refused_payload_is_free_before_raw_asks_for_its_own():
    class Bulky(codecs.Raw):
        """Says that it needs as much as the values."""

    rooms = []

    def room(nbytes):
        assert all(reference() is None for reference in rooms)
        given = torch.empty(nbytes, dtype=torch.uint8)
        rooms.append(weakref.ref(given))
        return given

    blob = codecs.encode(torch.randn(100), Bulky(), room=room)
    assert blob.codec == "raw" and len(rooms) == 2
