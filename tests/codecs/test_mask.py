"""mask: one bit per value, for whatever two values there are."""

import contracts
import pytest
import torch

from slimgrad import codecs


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float16, torch.complex64])
def test_one_bit_per_value(dtype: torch.dtype) -> None:
    values = (torch.arange(8000) % 3 == 0).to(dtype)
    blob = contracts.check_round_trip("mask", values)
    assert blob.codec == "mask"
    assert blob.payload.numel() == 1000 + 2 * dtype.itemsize


def test_a_dropout_mask_is_31_times_smaller() -> None:
    torch.manual_seed(0)
    x = torch.ones(1 << 16, requires_grad=True)
    mask = torch.nn.functional.dropout(x, 0.1).detach()
    blob = contracts.check_round_trip("mask", mask)
    assert mask.numel() * 4 / blob.nbytes > 31.9


PAIRS = [
    ("zeros of two signs", torch.tensor([0.0, -0.0])),
    ("two nans", torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32)),
    ("nan and infinity", torch.tensor([torch.nan, torch.inf])),
    ("subnormals", torch.tensor([1, 2], dtype=torch.int32).view(torch.float32)),
]


@pytest.mark.parametrize(("what", "pair"), PAIRS)
def test_the_two_values_may_be_any_bits(what: str, pair: torch.Tensor) -> None:
    assert contracts.check_round_trip("mask", pair.repeat(50)).codec == "mask", what


def test_one_value_is_enough() -> None:
    assert contracts.check_round_trip("mask", torch.full((100,), 2.5)).codec == "mask"


THIRD = [torch.tensor([0.0, 1.0, -0.0]), torch.tensor([1.0, torch.nan, -torch.nan]), torch.tensor([0, 1, 2])]


@pytest.mark.parametrize("three", THIRD, ids=str)
def test_a_third_value_is_left_to_raw(three: torch.Tensor) -> None:
    values = torch.cat([three[:2].repeat(100), three[2:]])
    assert contracts.check_round_trip("mask", values).codec == "raw"


def test_bits_given_directly_make_the_same_payload() -> None:
    for first in (False, True):
        bits = torch.arange(100) % 3 == 0
        bits[0] = first
        values = torch.where(bits, 1.25, 0.0)
        payload = codecs.Mask().encode_bits(bits, 1.25, 0.0, torch.float32, lambda n: torch.empty(n, dtype=torch.uint8))
        assert torch.equal(payload, codecs.encode(values, "mask").payload)
