"""index: pool indices in the bits of their window, from the arguments that the pool itself took."""

import contracts
import pytest
import torch
from torch.nn import functional

from slimgrad import codecs
from slimgrad.codecs import Index
from slimgrad.errors import ConfigError, CorruptPayload


def pooled(x: torch.Tensor, **arguments) -> torch.Tensor:
    return getattr(functional, f"max_pool{x.dim() - 2}d")(x, return_indices=True, **arguments)[1]


def window_bits(blob: codecs.Blob) -> float:
    return 8 * blob.payload.numel() / blob.numel


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "nbits"), [(2, 2), (3, 4), (4, 4), (5, 5), ((1, 3), 2), (1, 1)])
def test_as_few_bits_as_the_window_needs(kernel, nbits: int, layout: torch.memory_format) -> None:
    x = torch.rand(4, 16, 40, 40).to(memory_format=layout)
    indices = pooled(x, kernel_size=kernel)
    blob = contracts.check_round_trip(Index.of_pool(indices, (40, 40), kernel), indices)
    assert blob.payload.numel() == 3 + 13 + (indices.numel() * nbits + 7) // 8  # no number needs two bytes


@pytest.mark.parametrize("shape", [(3, 5, 50), (2, 3, 20, 24), (2, 3, 8, 10, 12)])
def test_one_two_and_three_dimensions(shape: tuple[int, ...]) -> None:
    indices = pooled(torch.rand(shape), kernel_size=3, stride=2, padding=1)
    blob = contracts.check_round_trip(Index.of_pool(indices, shape[2:], 3, 2, 1), indices)
    assert window_bits(blob) < {3: 3, 4: 5, 5: 6}[len(shape)]


def test_an_unbatched_map() -> None:
    indices = functional.max_pool2d(torch.rand(3, 40, 40), 2, return_indices=True)[1]
    assert window_bits(contracts.check_round_trip(Index.of_pool(indices, (40, 40), 2), indices)) < 2.2


def test_nan_inputs_have_indices_too() -> None:
    x = torch.rand(2, 3, 20, 20)
    x[0, 0, ::3] = torch.nan
    indices = pooled(x, kernel_size=2)
    assert window_bits(contracts.check_round_trip(Index.of_pool(indices, (20, 20), 2), indices)) < 2.5


def test_another_layout_gets_the_plain_form() -> None:
    indices = pooled(torch.rand(4, 3, 20, 20), kernel_size=2).permute(1, 0, 3, 2)
    assert Index.of_pool(indices, (20, 20), 2) == Index()
    contracts.check_round_trip(Index.of_pool(indices, (20, 20), 2), indices)


def test_without_a_window_the_largest_decides() -> None:
    values = torch.arange(1000)
    blob = contracts.check_round_trip("index", values)
    assert blob.payload.numel() == 2 + 1250
    assert contracts.check_round_trip("index", values % 2).payload.numel() == 2 + 125
    assert contracts.check_round_trip("index", values * 0).payload.numel() == 2 + 125


def test_indices_outside_their_window_are_stored_plainly() -> None:
    indices = pooled(torch.rand(2, 3, 20, 20), kernel_size=2)
    codec = Index.of_pool(indices, (20, 20), 2)
    indices[0, 0, 0, 0] = 399
    blob = contracts.check_round_trip(codec, indices)
    assert blob.codec == "index"
    assert window_bits(blob) > 9


def test_negative_numbers_are_left_to_raw() -> None:
    for codec in ("index", Index.of_pool(torch.zeros(1, 1, 10, 10), (20, 20), 2)):
        assert contracts.check_round_trip(codec, torch.arange(-1, 99)).codec == "raw"


def test_an_empty_pool() -> None:
    indices = torch.empty(0, 3, 10, 10, dtype=torch.int64)
    contracts.check_round_trip(Index.of_pool(indices, (20, 20), 2), indices)


def test_the_payload_needs_no_configuration() -> None:
    indices = pooled(torch.rand(2, 3, 20, 20).to(memory_format=torch.channels_last), kernel_size=3, stride=2)
    blob = codecs.from_bytes(codecs.to_bytes(codecs.encode(indices, Index.of_pool(indices, (20, 20), 3, 2))))
    assert torch.equal(codecs.decode(blob), indices)


WRONG = [
    ((), {"kernel": (2, 2)}, "all sizes for 1, 2 or 3 dimensions"),
    (((4,) * 4,) * 6, {}, "all sizes for 1, 2 or 3 dimensions"),
    (((8,), (4,), (0,), (2,), (0,), (1,)), {}, "sizes from 1"),
    (((8,), (4,), (2,), (2,), (-1,), (1,)), {}, "padding from 0"),
    (((8,), (4,), (2,), (2,), (0,), (1,)), {"channels": 0}, "channels from 1"),
    (((2**16, 2**16), (4, 4), (2, 2), (2, 2), (0, 0), (1, 1)), {}, "positions in input and window"),
]


@pytest.mark.parametrize(("arguments", "named", "fragment"), WRONG)
def test_an_impossible_window_is_refused_at_once(arguments: tuple, named: dict, fragment: str) -> None:
    with pytest.raises(ConfigError, match=fragment):
        Index(*arguments, **named)


def test_a_window_for_other_indices_says_what_to_type() -> None:
    indices = pooled(torch.rand(2, 3, 20, 20), kernel_size=2)
    with pytest.raises(ConfigError, match=r"multiple of 100 values .* got 7; write Index.of_pool"):
        codecs.encode(torch.zeros(7, dtype=torch.int64), Index.of_pool(indices, (20, 20), 2))


PAYLOADS = [
    bytes([2, 1, 0]),
    bytes([0, 0, 0]),
    bytes([0, 64, 0]),
    bytes([1, 1]),
    bytes([1, 1, 0]),
    bytes([1, 1, 4, *[1] * 25, 0]),
    bytes([1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0]),
    bytes([1, 2, 1, 1, 1, 1, 1, 0, 1, 1, 0]),
    bytes([1, 1, 1, 9, 9, 1, 1, 0, 1, 1, 0]),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=bytes.hex)
def test_payloads_that_no_encoder_writes_are_refused(payload: bytes) -> None:
    with pytest.raises(CorruptPayload, match=r"index|expected"):
        Index().decode(torch.frombuffer(bytearray(payload), dtype=torch.uint8), torch.empty(4, dtype=torch.int64))
