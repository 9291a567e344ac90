"""The compiled library, through ctypes: the same functions as `reference`, at memory speed.

ctypes releases the GIL for the length of every call. The functions for nested are here, the lossless ones in
native_sparse.py, finding and loading the library in library.py.
"""

from __future__ import annotations

import ctypes

import torch

from slimgrad.errors import CorruptPayload, InternalError
from slimgrad.kernels.library import is_available, isa, library, use_isa, why_unavailable
from slimgrad.kernels.native_sparse import (
    pack_bits,
    pack_mask,
    pack_rle,
    pack_window,
    pack_zvc,
    unpack_bits,
    unpack_mask,
    unpack_rle,
    unpack_window,
    unpack_zvc,
)
from slimgrad.kernels.reference.nested import NestedCode

__all__ = [
    "channel_scales",
    "is_available",
    "isa",
    "library",
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
    "use_isa",
    "why_unavailable",
]

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class _NestedStruct(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("levels", ctypes.c_int32),
        ("rice", ctypes.c_int32),
        ("channels", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("thresholds", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("centre", ctypes.c_void_p),
    ]


def nested_encode(flat: torch.Tensor, code: NestedCode, out: torch.Tensor) -> int:
    """Write the nested body of `flat` into `out` and return its length; see reference.nested_encode."""
    struct = _struct(flat.dtype, code)
    used = library().slimgrad_nested_encode(
        flat.data_ptr(), flat.numel(), ctypes.byref(struct), out.data_ptr(), out.numel(), torch.get_num_threads()
    )
    if used < 0:
        raise InternalError(
            f"nested_encode of {flat.numel()} values into {out.numel()} bytes failed with status {used}"
        )
    return used


def nested_decode(body: torch.Tensor, code: NestedCode, out: torch.Tensor) -> None:
    """Fill `out` from a nested body; see reference.nested_decode."""
    struct = _struct(out.dtype, code)
    status = library().slimgrad_nested_decode(
        body.data_ptr(), body.numel(), ctypes.byref(struct), out.data_ptr(), out.numel(), torch.get_num_threads()
    )
    if status != 0:
        raise CorruptPayload(f"nested: the {body.numel()} bytes are not a body of {out.numel()} values")


def _struct(dtype: torch.dtype, code: NestedCode) -> _NestedStruct:
    def address(table: torch.Tensor | None) -> int | None:
        return None if table is None else table.data_ptr()

    return _NestedStruct(
        DTYPES[dtype],
        code.flags,
        code.levels,
        code.rice,
        code.channels,
        code.inner,
        address(code.thresholds),
        address(code.values),
        address(code.scale),
        address(code.centre),
    )


def moments(flat: torch.Tensor, count: int, inner: int, run: int, every: int) -> torch.Tensor:
    """Return float64 (count, 4): finite values, non-zeros, sum, sum of squares; see reference.moments."""
    out = torch.empty(count, 4, dtype=torch.float64)
    status = library().slimgrad_moments(
        flat.data_ptr(), flat.numel(), DTYPES[flat.dtype], count, inner, run, every, out.data_ptr()
    )
    if status != 0:
        raise InternalError(f"moments of {flat.numel()} values over {count} channels failed with status {status}")
    return out


def channel_scales(
    sums: torch.Tensor, dtype: torch.dtype, is_centred: bool, rel: float, absolute: float, reach: int
) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Return (scale, centre, largest eps) per channel, or None; see reference.channel_scales."""
    tables = torch.empty(2, sums.shape[0], dtype=torch.float32)
    scale, centre = tables.unbind(0)
    eps = ctypes.c_double()
    status = library().slimgrad_channel_scales(
        sums.data_ptr(), sums.shape[0], DTYPES[dtype], is_centred, rel, absolute, reach,
        scale.data_ptr(), centre.data_ptr(), ctypes.byref(eps),
    )  # fmt: skip
    return None if status != 0 else (scale, centre, eps.value)
