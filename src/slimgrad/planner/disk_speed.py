"""How fast a directory's disk is, by a short probe through the tier's own file: what a swapped byte will cost.

    disk_bandwidth("/var/tmp") -> bytes/s, written and read back

PROBE bytes go out and come back past the page cache, as swapped tensors do. Where the directory will not do, the answer
is ASSUMED: the session will say what is wrong with it when it swaps.
"""

from __future__ import annotations

import mmap
import os
import time

import numpy as np
import torch

from slimgrad.errors import SlimgradError
from slimgrad.storage import Disk

PROBE = 8 << 20  # bytes: a few milliseconds on a fast disk, a second on a very slow one
ASSUMED = 500e6  # bytes/s


def disk_bandwidth(directory: str | os.PathLike[str] | None = None, nbytes: int = PROBE) -> float:
    """Return bytes per second of one way, the mean of writing and reading."""
    source = torch.zeros(nbytes, dtype=torch.uint8)
    room = torch.from_numpy(np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8))  # whole pages, as direct reads need
    try:
        disk = Disk(directory)
    except (SlimgradError, OSError):
        return ASSUMED
    try:
        start = time.perf_counter()
        disk.read(disk.write(source), room)
        return 2 * nbytes / max(time.perf_counter() - start, 1e-9)
    except (SlimgradError, OSError):
        return ASSUMED
    finally:
        disk.close()
