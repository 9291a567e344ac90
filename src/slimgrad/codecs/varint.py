"""Unsigned numbers in as few bytes as they need (LEB128): seven bits per byte, lowest first; the top bit says: more.

Only the shortest form of a number is valid, so that equal numbers are equal bytes.
"""

from __future__ import annotations

from slimgrad.errors import CorruptPayload

LIMIT = 1 << 63  # sizes are int64 everywhere else


def write_varint(number: int) -> bytes:
    """Return the bytes of a number from 0 to 2^63 - 1."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            if number >= LIMIT or (byte == 0 and shift > 7):
                raise CorruptPayload(f"expected a number below 2^63 in its shortest form, got {number} in {at} bytes")
            return number, at
        if shift > 63:
            break
    raise CorruptPayload(f"expected a number of at most 9 bytes, got {shift // 7} bytes and no end")
