"""Blobs as bytes: the header of docs/format.md, and everything that is not one is refused."""

import struct
import zlib

import codec_cases
import contracts
import pytest
import torch

from slimgrad import codecs
from slimgrad.codecs import wire
from slimgrad.codecs.base import Blob
from slimgrad.errors import ConfigError, CorruptPayload


def header(fixed: bytes, sizes: bytes = b"", payload: bytes = b"") -> bytes:
    """Return a blob with a right checksum, whatever it says."""
    return fixed + struct.pack("<I", zlib.crc32(fixed + sizes)) + sizes + payload


def test_a_header_byte_by_byte() -> None:
    data = codecs.to_bytes(codecs.encode(torch.tensor([[1.0, 2.0, 3.0]]), "raw"))
    assert data == header(bytes([1, 0, 0, 2]), bytes([1, 3]), struct.pack("<3f", 1, 2, 3))


def test_a_permuted_header_byte_by_byte() -> None:
    data = codecs.to_bytes(codecs.encode(torch.zeros(2, 300, dtype=torch.bool).t(), "mask"))
    assert data[:4] == bytes([1, 2, 8, 0x82])
    assert data[8:13] == bytes([0xAC, 0x02, 2, 1, 0])


@pytest.mark.parametrize("dtype", wire.DTYPES, ids=str)
def test_every_dtype_has_a_byte_and_comes_back(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 0, 1, 1, 0] * 40, dtype=torch.uint8).to(torch.bool).to(torch.float32).to(dtype)
    for name in ("raw", "mask", "zvc", "rle", "deflate"):
        again = codecs.decode(codecs.from_bytes(codecs.to_bytes(codecs.encode(values, name))))
        assert contracts.same_bits(again, values)


def test_bytes_of_dtypes_are_never_renumbered() -> None:
    known = {
        "float32": 0,
        "float16": 1,
        "bfloat16": 2,
        "float64": 3,
        "bool": 8,
        "uint8": 9,
        "int64": 13,
        "complex128": 25,
    }
    assert {name: wire.DTYPES[getattr(torch, name)] for name in known} == known
    assert len(set(wire.DTYPES.values())) == len(wire.DTYPES)


def test_a_dtype_without_a_byte_says_which_have_one() -> None:
    blob = Blob("raw", torch.float8_e5m2fnuz, (1,), (0,), torch.zeros(1, dtype=torch.uint8))
    with pytest.raises(ConfigError, match=r"expected one of torch.float32.*got torch.float8_e5m2fnuz"):
        codecs.to_bytes(blob)


REFUSED = {
    "nothing": b"",
    "seven bytes": bytes([1, 0, 0, 0, 0, 0, 0]),
    "another version": header(bytes([2, 0, 0, 0]), payload=bytes(4)),
    "a wrong checksum": bytes([1, 0, 0, 0, 1, 2, 3, 4]) + bytes(4),
    "an unknown codec": header(bytes([1, 99, 0, 0]), payload=bytes(4)),
    "an unknown dtype": header(bytes([1, 0, 99, 0]), payload=bytes(4)),
    "too many dimensions": header(bytes([1, 0, 0, 65]), bytes([1] * 65), bytes(4)),
    "sizes that are cut": header(bytes([1, 0, 0, 2]), bytes([1])),
    "a size in a long form": header(bytes([1, 0, 0, 1]), bytes([0x81, 0x00]), bytes(4)),
    "a size of 2^63": header(bytes([1, 0, 0, 1]), bytes([0x80] * 9 + [1])),
    "2^63 bytes": header(bytes([1, 0, 0, 2]), bytes([0xFF] * 4 + [0x7F]) * 2),
    "an order that repeats": header(bytes([1, 0, 0, 0x82]), bytes([1, 1, 0, 0]), bytes(4)),
    "an order beyond the dimensions": header(bytes([1, 0, 0, 0x82]), bytes([1, 1, 0, 2]), bytes(4)),
    "an order that is plain": header(bytes([1, 0, 0, 0x82]), bytes([1, 1, 0, 1]), bytes(4)),
    "an order that is cut": header(bytes([1, 0, 0, 0x82]), bytes([1, 1, 1])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    with pytest.raises(CorruptPayload, match="expected"):
        codecs.from_bytes(REFUSED[what])


def test_every_flipped_bit_of_a_header_is_seen() -> None:
    blob = codecs.encode(codec_cases.relu(60).view(3, 20).t(), "zvc")
    data = codecs.to_bytes(blob)
    for bit in range(8 * (blob.nbytes - blob.payload.numel())):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptPayload):
            codecs.from_bytes(damaged)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(CorruptPayload, match="expected format version 1, got 7; newer blobs need a newer slimgrad"):
        codecs.from_bytes(header(bytes([7, 0, 0, 0])))
