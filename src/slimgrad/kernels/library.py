"""Finding, checking and loading the compiled library; which instruction set it uses.

The library is looked for at $SLIMGRAD_LIBRARY, then beside this package. It shares the OpenMP pool that torch has
already started (csrc/parallel.h, Note [Whose threads]).
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys

import torch

from slimgrad.errors import ConfigError, InternalError

ABI = 2


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
    size = ctypes.c_int32
    library.slimgrad_pack_nested.argtypes = [p, n, size, n, n, n, size, d, d, p, p, n, i]
    library.slimgrad_unpack_nested.argtypes = [p, n, p, n, size, i]
    library.slimgrad_pack_nested_form.argtypes = [p, p, p, p, i]
    library.slimgrad_unpack_nested_form.argtypes = [p, p, n, p, i]
    for name in ("pack_nested", "unpack_nested", "pack_nested_form", "unpack_nested_form"):
        getattr(library, f"slimgrad_{name}").restype = n
    _declare_lossless(library)
    _check_isa_wish(library)
    library.slimgrad_use_pool.argtypes = [p]
    library.slimgrad_use_pool(pool_of_torch())
    return library


def _declare_lossless(library: ctypes.CDLL) -> None:
    p, n, size, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int
    for code in ("zvc", "rle", "mask"):
        getattr(library, f"slimgrad_pack_{code}").argtypes = [p, n, size, p, n, i]
        getattr(library, f"slimgrad_unpack_{code}").argtypes = [p, n, p, n, size, i]
    library.slimgrad_pack_bits.argtypes = [p, n, size, p, n, i]
    library.slimgrad_unpack_bits.argtypes = [p, n, size, p, n, i]
    library.slimgrad_pack_window.argtypes = [p, n, p, size, p, n, i]
    library.slimgrad_unpack_window.argtypes = [p, n, p, size, p, n, i]
    for code in ("zvc", "rle", "mask", "bits", "window"):
        getattr(library, f"slimgrad_pack_{code}").restype = n
        getattr(library, f"slimgrad_unpack_{code}").restype = n


def _check_isa_wish(library: ctypes.CDLL) -> None:
    wish = os.environ.get("SLIMGRAD_ISA", "")
    if wish and library.slimgrad_isa().decode() != wish:
        raise ConfigError(
            f"expected SLIMGRAD_ISA to be avx512, avx2 or portable and in this machine, got {wish!r}; "
            f"unset it to use {library.slimgrad_isa().decode()}"
        )


def pool_of_torch() -> int | None:
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


@functools.cache  # asked for at every call of a kernel
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
