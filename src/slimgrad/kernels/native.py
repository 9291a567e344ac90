"""The compiled library, through ctypes: the same functions as `reference`, at memory speed.

ctypes releases the GIL for the length of every call. The library is looked for at $SLIMGRAD_LIBRARY, then beside this
package. It shares the OpenMP pool that torch has already started (csrc/parallel.h, Note [Whose threads]).
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys

import torch

from slimgrad.errors import ConfigError, CorruptPayload, InternalError
from slimgrad.kernels.reference.nested import NestedCode

ABI = 1
CORRUPT, NO_ROOM = -1, -2
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


@functools.cache
def _library() -> ctypes.CDLL | str:
    """Return the loaded library, or why there is none."""
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    prefix = "" if sys.platform == "win32" else "lib"
    inside = pathlib.Path(__file__).parent.parent / f"{prefix}slimgrad_native{suffix}"
    path = os.environ.get("SLIMGRAD_LIBRARY", str(inside))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"the compiled library could not be loaded ({error})"
    if library.slimgrad_abi() != ABI:
        return f"the compiled library at {path} is of another version (interface {library.slimgrad_abi()}, not {ABI})"
    p, n, i, d = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
    library.slimgrad_isa.restype = ctypes.c_char_p
    library.slimgrad_nested_encode.argtypes = [p, n, p, p, n, i]
    library.slimgrad_nested_decode.argtypes = [p, n, p, p, n, i]
    library.slimgrad_moments.argtypes = [p, n, ctypes.c_int32, n, n, n, n, p]
    library.slimgrad_channel_scales.argtypes = [p, n, ctypes.c_int32, i, d, d, n, p, p, p]
    for name in ("slimgrad_nested_encode", "slimgrad_nested_decode", "slimgrad_moments", "slimgrad_channel_scales"):
        getattr(library, name).restype = n
    _check_isa_wish(library)
    library.slimgrad_use_pool.argtypes = [p]
    library.slimgrad_use_pool(_pool_of_torch())
    return library


def _check_isa_wish(library: ctypes.CDLL) -> None:
    wish = os.environ.get("SLIMGRAD_ISA", "")
    if wish and library.slimgrad_isa().decode() != wish:
        raise ConfigError(
            f"expected SLIMGRAD_ISA to be avx512, avx2 or portable and in this machine, got {wish!r}; "
            f"unset it to use {library.slimgrad_isa().decode()}"
        )


def _pool_of_torch() -> int | None:
    """Return the address of GOMP_parallel in the OpenMP runtime that torch has loaded, if it can be found."""
    for path in _loaded_openmp_runtimes():
        try:
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _loaded_openmp_runtimes() -> list[str]:
    try:
        lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # no /proc: macOS keeps the runtime beside torch
        return [str(path) for path in (pathlib.Path(torch.__file__).parent / "lib").glob("*omp*")]
    paths = (line.split(maxsplit=5)[5] for line in lines if line.count("/"))
    return sorted({path for path in paths if "omp" in pathlib.PurePath(path).name and ".so" in path})


def library() -> ctypes.CDLL:
    """Return the loaded library; raise when there is none."""
    loaded = _library()
    if isinstance(loaded, str):
        raise InternalError(f"native kernels were asked for, but {loaded}")
    return loaded


def is_available() -> bool:
    """Return whether the compiled library is there and fits."""
    return not isinstance(_library(), str)


def why_unavailable() -> str:
    """Return the reason for is_available() being False, as half a sentence."""
    loaded = _library()
    return loaded if isinstance(loaded, str) else "it is available"


def isa() -> str:
    """Return the name of the instruction set in use."""
    return library().slimgrad_isa().decode()


def use_isa(name: str) -> None:
    """Use this instruction set from now on; raise when the machine or the build lacks it."""
    if library().slimgrad_use_isa(name.encode()) != 0:
        raise ConfigError(f"expected an instruction set of this machine (avx512, avx2, portable), got {name!r}")


def nested_encode(flat: torch.Tensor, code: NestedCode, out: torch.Tensor) -> int:
    """Write the nested body of `flat` into `out` and return its length; see reference.nested_encode."""
    struct = _struct(flat.dtype, code)
    used = library().slimgrad_nested_encode(
        flat.data_ptr(), flat.numel(), ctypes.byref(struct), out.data_ptr(), out.numel(), torch.get_num_threads()
    )
    if used < 0:
        raise InternalError(f"nested_encode of {flat.numel()} values into {out.numel()} bytes failed with status {used}")
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
