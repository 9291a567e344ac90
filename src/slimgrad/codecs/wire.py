"""Blobs as bytes, for disk and for other processes: the header of docs/format.md, then the payload.

    version  codec tag  dtype  dimensions | 0x80 if not contiguous  CRC-32 (4)  sizes (varints)  [order]  payload

The CRC covers the header, so a damaged shape is never believed. Payloads defend themselves: see base.py.
"""

from __future__ import annotations

import struct
import zlib

import torch

from slimgrad.codecs.base import Blob, Codec
from slimgrad.codecs.varint import LIMIT, read_varint, write_varint
from slimgrad.errors import ConfigError, CorruptPayload

VERSION = 1
MAX_DIMS = 64  # as in torch
PERMUTED = 0x80  # flag in the byte of dimensions: an order follows the sizes

DTYPES = {  # never renumber
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float64: 3,
    torch.float8_e4m3fn: 4,
    torch.float8_e5m2: 5,
    torch.bool: 8,
    torch.uint8: 9,
    torch.int8: 10,
    torch.int16: 11,
    torch.int32: 12,
    torch.int64: 13,
    torch.uint16: 14,
    torch.uint32: 15,
    torch.uint64: 16,
    torch.complex64: 24,
    torch.complex128: 25,
}
DTYPE_OF_BYTE = {byte: dtype for dtype, byte in DTYPES.items()}


def to_bytes(blob: Blob, codecs: dict[str, type[Codec]]) -> bytes:
    """Return the blob as blob.nbytes bytes."""
    if blob.dtype not in DTYPES:
        raise ConfigError(f"expected one of {', '.join(map(str, DTYPES))}, got {blob.dtype}, which has no byte")
    is_permuted = blob.order != tuple(range(len(blob.shape)))
    fixed = struct.pack(
        "BBBB", VERSION, codecs[blob.codec].tag, DTYPES[blob.dtype], len(blob.shape) | (PERMUTED if is_permuted else 0)
    )
    sizes = b"".join(write_varint(size) for size in blob.shape) + (bytes(blob.order) if is_permuted else b"")
    crc = zlib.crc32(fixed + sizes)
    return fixed + struct.pack("<I", crc) + sizes + blob.payload.cpu().numpy().tobytes()


def from_bytes(data: bytes | bytearray | memoryview, codecs: dict[str, type[Codec]]) -> Blob:
    """Return the blob that to_bytes wrote; anything else raises CorruptPayload."""
    data = bytes(data)
    if len(data) < 8:
        raise CorruptPayload(f"expected a header of at least 8 bytes, got {len(data)}")
    version, tag, dtype_byte, dims, crc = struct.unpack_from("<BBBBI", data)
    if version != VERSION:
        raise CorruptPayload(f"expected format version {VERSION}, got {version}; newer blobs need a newer slimgrad")
    shape, at = _read_shape(data, dims & ~PERMUTED)
    order, end = _read_order(data, at, len(shape), bool(dims & PERMUTED))
    if zlib.crc32(data[:4] + data[8:end]) != crc:
        raise CorruptPayload("expected the header's CRC-32 to match, got a damaged header")
    names = {codec.tag: name for name, codec in codecs.items()}
    if tag not in names or dtype_byte not in DTYPE_OF_BYTE:
        raise CorruptPayload(f"expected a known codec and dtype, got codec tag {tag} and dtype byte {dtype_byte}")
    dtype = DTYPE_OF_BYTE[dtype_byte]
    payload = torch.frombuffer(bytearray(data[end:]), dtype=torch.uint8) if end < len(data) else torch.empty(0).byte()
    blob = Blob(names[tag], dtype, shape, order, payload, codecs[names[tag]]().eps_of(payload))
    if blob.numel * dtype.itemsize >= LIMIT:
        raise CorruptPayload(f"expected a tensor of less than 2^63 bytes, got shape {shape}")
    return blob


def _read_shape(data: bytes, n_dims: int) -> tuple[tuple[int, ...], int]:
    """Return the sizes of the dimensions, and where they end."""
    if n_dims > MAX_DIMS:
        raise CorruptPayload(f"expected at most {MAX_DIMS} dimensions, got {n_dims}")
    shape, at = [], 8
    for _ in range(n_dims):
        size, at = read_varint(data, at)
        shape.append(size)
    return tuple(shape), at


def _read_order(data: bytes, at: int, n_dims: int, is_permuted: bool) -> tuple[tuple[int, ...], int]:
    """Return the dimensions from slowest to fastest in memory, and where they end."""
    plain = tuple(range(n_dims))
    if not is_permuted:
        return plain, at
    order = tuple(data[at : at + n_dims])
    if tuple(sorted(order)) != plain or order == plain:
        raise CorruptPayload(f"expected a permutation of {n_dims} dimensions other than their plain order, got {order}")
    return order, at + n_dims
