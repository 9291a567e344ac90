"""The compiled lossless kernels: the same functions as reference/bits.py and reference/sparse.py, with the same bytes.

A status below zero means, for pack_*, that the values cannot or need not be written this way, and for unpack_*, that
the bytes are not what pack_* writes; anything else the library could object to is our own mistake.
"""

from __future__ import annotations

import ctypes

import torch

from slimgrad.errors import InternalError
from slimgrad.kernels.library import library
from slimgrad.kernels.reference.bits import DOES_NOT_FIT, Window

CORRUPT, NO_ROOM, UNSUITED = -1, -2, -4


def pack_zvc(words: torch.Tensor, out: torch.Tensor) -> int:
    return _used(library().slimgrad_pack_zvc(*_words(words), *_bytes(out), torch.get_num_threads()))


def unpack_zvc(payload: torch.Tensor, words: torch.Tensor) -> bool:
    return _is_done(library().slimgrad_unpack_zvc(*_bytes(payload), *_words(words), torch.get_num_threads()))


def pack_rle(words: torch.Tensor, out: torch.Tensor) -> int:
    return _used(library().slimgrad_pack_rle(*_words(words), *_bytes(out), torch.get_num_threads()))


def unpack_rle(payload: torch.Tensor, words: torch.Tensor) -> bool:
    return _is_done(library().slimgrad_unpack_rle(*_bytes(payload), *_words(words), torch.get_num_threads()))


def pack_mask(words: torch.Tensor, out: torch.Tensor) -> int:
    return _used(library().slimgrad_pack_mask(*_words(words), *_bytes(out), torch.get_num_threads()))


def unpack_mask(payload: torch.Tensor, words: torch.Tensor) -> bool:
    return _is_done(library().slimgrad_unpack_mask(*_bytes(payload), *_words(words), torch.get_num_threads()))


def pack_bits(values: torch.Tensor, nbits: int, out: torch.Tensor) -> int:
    return _used(library().slimgrad_pack_bits(*_bytes(values), nbits, *_bytes(out), torch.get_num_threads()))


def unpack_bits(data: torch.Tensor, nbits: int, values: torch.Tensor) -> bool:
    return _is_done(library().slimgrad_unpack_bits(*_bytes(data), nbits, *_bytes(values), torch.get_num_threads()))


def pack_window(indices: torch.Tensor, window: Window, nbits: int, out: torch.Tensor) -> int:
    geometry = ctypes.byref(_geometry(window))
    return _used(
        library().slimgrad_pack_window(*_bytes(indices), geometry, nbits, *_bytes(out), torch.get_num_threads())
    )


def unpack_window(data: torch.Tensor, window: Window, nbits: int, indices: torch.Tensor) -> bool:
    geometry = ctypes.byref(_geometry(window))
    return _is_done(
        library().slimgrad_unpack_window(*_bytes(data), geometry, nbits, *_bytes(indices), torch.get_num_threads())
    )


def _bytes(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _words(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.numel(), tensor.element_size()


def _geometry(window: Window) -> ctypes.Array[ctypes.c_int64]:
    """Return the slimgrad_window of the C interface: three spans of six numbers, then the channels."""
    numbers = [number for span in window.spans for number in span]
    return (ctypes.c_int64 * 19)(*numbers, window.channels)


def _used(status: int) -> int:
    if status >= 0:
        return status
    if status in (NO_ROOM, UNSUITED):
        return DOES_NOT_FIT
    raise InternalError(f"a lossless kernel refused its arguments with status {status}; please report this")


def _is_done(status: int) -> bool:
    if status in (0, CORRUPT):
        return status == 0
    raise InternalError(f"a lossless kernel refused its arguments with status {status}; please report this")
