"""Plain torch: what every other kernel must equal, byte for byte."""

from slimgrad.kernels.reference.bits import (
    pack_bits,
    pack_mask,
    pack_window,
    unpack_bits,
    unpack_mask,
    unpack_window,
)
from slimgrad.kernels.reference.nested import nested_decode, nested_encode
from slimgrad.kernels.reference.sparse import pack_rle, pack_zvc, unpack_rle, unpack_zvc
from slimgrad.kernels.reference.statistics import channel_scales, moments

__all__ = [
    "channel_scales",
    "moments",
    "nested_decode",
    "nested_encode",
    "pack_bits",
    "pack_mask",
    "pack_rle",
    "pack_window",
    "pack_zvc",
    "unpack_bits",
    "unpack_mask",
    "unpack_rle",
    "unpack_window",
    "unpack_zvc",
]
