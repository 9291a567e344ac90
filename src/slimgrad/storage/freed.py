"""What malloc keeps of tensors that are gone, given back to the system now and then.

A forward under a session frees each activation soon after it was made, in another order than a plain forward, and in
between come small tensors that stay. glibc gives only the end of its heap back, so the holes below stay resident: half
of a step's memory on ResNet-50. malloc_trim gives the holes back as well, at the price of pages that are touched anew.
That is cheap where torch asks for huge pages (HUGE_PAGES in the environment), and done there by itself; elsewhere it
takes a tenth of a step and more, so a policy has to ask for it: Compress(give_back=256 << 20).
docs/decisions/0005-freed-memory.md has the measurements. Where malloc is not glibc's, nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # torch reads it once, when it first allocates on the CPU
EVERY = 256 << 20  # bytes coded or decoded between two calls, where nobody said otherwise


def has_huge_pages() -> bool:
    """Return whether torch asks for huge pages in this process, as far as its environment says."""
    return sys.platform == "linux" and os.environ.get(HUGE_PAGES) == "1"


def _malloc_trim() -> Callable[[int], object]:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim or (lambda pad: None)  # only glibc has it


class Freed:
    """Counts the bytes of tensors that a session lets go, and has them given back every so many.

    0: never. None: as often as EVERY says where it is cheap, else never.
    """

    trim = staticmethod(_malloc_trim())

    def __init__(self, every: int | None) -> None:
        self.every = every if every is not None else EVERY if has_huge_pages() else 0
        self.nbytes = 0  # since the last call

    def passed(self, nbytes: int) -> None:
        """Note that a tensor of this size was coded or decoded."""
        self.nbytes += nbytes
        if 0 < self.every <= self.nbytes:
            self.nbytes = 0
            self.trim(0)
