"""What malloc keeps of tensors that are gone, given back to the system now and then.

A forward under a session frees each activation soon after it was made, in another order than a plain forward, and in
between come small tensors that stay. glibc gives only the end of its heap back, so the holes below stay resident: half
of a step's memory on ResNet-50. malloc_trim gives the holes back as well. It costs the pages that are touched again
later, a tenth of a step and more, so it is done only where a policy asks for it: Compress(give_back=256 << 20).
docs/decisions/0005-freed-memory.md has the measurements. Where malloc is not glibc's, nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def _malloc_trim() -> Callable[[int], object] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it


class Freed:
    """Counts the bytes of tensors that a session lets go, and has them given back every so many; 0: never."""

    trim = staticmethod(_malloc_trim() or (lambda pad: None))

    def __init__(self, every: int) -> None:
        self.every = every
        self.nbytes = 0  # since the last call

    def passed(self, nbytes: int) -> None:
        """Note that a tensor of this size was coded or decoded."""
        self.nbytes += nbytes
        if 0 < self.every <= self.nbytes:
            self.nbytes = 0
            self.trim(0)
