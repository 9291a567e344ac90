"""The compiled library, through ctypes: the same functions as `reference`, at memory speed.

ctypes releases the GIL for the length of every call. The functions for nested are here, the lossless ones in
native_sparse.py, finding and loading the library in library.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

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
from slimgrad.kernels.reference.nested_choice import NestedWish

__all__ = [
    "is_available",
    "isa",
    "library",
    "nested_between_addresses",
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
    "use_isa",
    "why_unavailable",
]

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CENTRED, SAMPLED = 1, 2


class NestedForm(ctypes.Structure):
    """slimgrad_nested_form of csrc/slimgrad.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("n", "channels", "inner", "apart", "capacity")),
        *((name, ctypes.c_double) for name in ("rel", "absolute")),
        *((name, ctypes.c_int32) for name in ("dtype", "options")),
    )


def pack_nested(flat: torch.Tensor, wish: NestedWish, out: torch.Tensor, edges: torch.Tensor | None = None) -> int:
    """Write the payload of `flat` into `out` and return its length, or 0; see reference.pack_nested."""
    channels, inner, centred, sampled, rel, absolute, apart = wish
    used = library().slimgrad_pack_nested(
        flat.data_ptr(), flat.numel(), DTYPES[flat.dtype], channels, inner, apart,
        CENTRED * centred + SAMPLED * sampled, rel, absolute, 0 if edges is None else edges.data_ptr(),
        out.data_ptr(), out.numel(), torch.get_num_threads(),
    )  # fmt: skip
    if used < 0:
        raise InternalError(f"pack_nested of {flat.numel()} values into {out.numel()} bytes failed with status {used}")
    return used


def unpack_nested(payload: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out` from a payload; see reference.unpack_nested."""
    status = library().slimgrad_unpack_nested(
        payload.data_ptr(), payload.numel(), out.data_ptr(), out.numel(), DTYPES[out.dtype], torch.get_num_threads()
    )
    if status != 0:
        raise CorruptPayload(f"nested: the {payload.numel()} bytes are not a payload of {out.numel()} values")


def nested_between_addresses(
    n: int, dtype: torch.dtype, wish: NestedWish, capacity: int
) -> tuple[Callable[..., int], Callable[[int, int, int], None]]:
    """Return pack_nested and unpack_nested for `n` values of one dtype, from address to address.

    pack(source, room, edges) returns the bytes used of `capacity`, or 0; unpack(payload, nbytes, out) fills `out`.
    """
    channels, inner, centred, sampled, rel, absolute, apart = wish
    options = CENTRED * centred + SAMPLED * sampled
    form = NestedForm(n, channels, inner, apart, capacity, rel, absolute, DTYPES[dtype], options)
    form_address, n_threads = ctypes.addressof(form), torch.get_num_threads
    run_pack, run_unpack = library().slimgrad_pack_nested_form, library().slimgrad_unpack_nested_form

    def pack(source: int, room: int, edges: int = 0) -> int:
        used = run_pack(form_address, source, edges, room, n_threads())
        if used < 0:
            raise InternalError(f"pack_nested of {form.n} values into {capacity} bytes failed with status {used}")
        return used

    def unpack(payload: int, nbytes: int, out: int) -> None:
        if run_unpack(form_address, payload, nbytes, out, n_threads()) != 0:
            raise CorruptPayload(f"nested: the {nbytes} bytes are not a payload of {form.n} values")

    return pack, unpack  # both hold `form`, and so the memory at its address
