"""The loops over values: the same functions from several sources, with the same bytes.

    reference   plain torch, the specification; always there, slow
    native      the compiled library, loaded by ctypes

`active()` picks native when the library is there, else reference with one warning that says how to get it.
SLIMGRAD_KERNELS=reference|native forces one.
"""

from __future__ import annotations

import functools
import os
import types
import warnings

from slimgrad.errors import ConfigError
from slimgrad.kernels import native, reference


@functools.cache
def active() -> types.ModuleType:
    """Return the module whose kernels run on CPU tensors."""
    wish = os.environ.get("SLIMGRAD_KERNELS", "")
    if wish not in ("", "native", "reference"):
        raise ConfigError(f"expected SLIMGRAD_KERNELS to be 'native' or 'reference', got {wish!r}")
    if wish == "reference":
        return reference
    if native.is_available():
        return native
    if wish == "native":
        raise ConfigError(
            f"SLIMGRAD_KERNELS=native, but {native.why_unavailable()}; reinstall with a C++ compiler at hand"
        )
    warnings.warn(
        f"slimgrad runs its slow reference kernels, because {native.why_unavailable()}; "
        "install a C++ compiler, then: pip install --force-reinstall --no-deps slimgrad",
        stacklevel=2,
    )
    return reference
