"""Plain torch: what every other kernel must equal, byte for byte."""

from slimgrad.kernels.reference.bits import (
    pack_bits,
    pack_mask,
    pack_window,
    unpack_bits,
    unpack_mask,
    unpack_window,
)
from slimgrad.kernels.reference.nested_choice import pack_nested, unpack_nested
from slimgrad.kernels.reference.sparse import pack_rle, pack_zvc, unpack_rle, unpack_zvc

__all__ = [
    "pack_bits",
    "pack_mask",
    "pack_nested",
    "pack_rle",
    "pack_window",
    "pack_zvc",
    "unpack_bits",
    "unpack_mask",
    "unpack_nested",
    "unpack_rle",
    "unpack_window",
    "unpack_zvc",
]
