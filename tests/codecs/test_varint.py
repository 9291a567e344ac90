"""Varints: every number has one form, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimgrad.codecs.varint import read_varint, write_varint
from slimgrad.errors import CorruptPayload

KNOWN = [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**63 - 1, "ffffffffffffffff7f")]


@pytest.mark.parametrize(("number", "data"), KNOWN)
def test_known_forms(number: int, data: str) -> None:
    assert write_varint(number).hex() == data
    assert read_varint(bytes.fromhex("99" + data + "99"), 1) == (number, 1 + len(data) // 2)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=5))
def test_numbers_come_back_one_after_another(numbers: list[int]) -> None:
    data, at = b"".join(write_varint(number) for number in numbers), 0
    for number in numbers:
        again, at = read_varint(data, at)
        assert again == number
    assert at == len(data)


@pytest.mark.parametrize("data", ["", "80", "ffff", "8000", "ff00", "ffffffffffffffffff01", "80" * 12])
def test_cut_overlong_and_padded_numbers_are_refused(data: str) -> None:
    with pytest.raises(CorruptPayload, match="expected a number"):
        read_varint(bytes.fromhex(data), 0)


@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_in_its_only_form_or_refused(data: bytes) -> None:
    try:
        number, end = read_varint(data, 0)
    except CorruptPayload:
        return
    assert write_varint(number) == data[:end]
