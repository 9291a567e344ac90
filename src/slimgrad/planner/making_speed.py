"""How fast results of cheap layers are made again, by a short probe: what a byte that is not stored will cost.

making_bandwidth() -> bytes/s of results, per function in the chain
"""

from __future__ import annotations

import functools
import time

import torch
from torch.nn import functional

PROBE = (4, 64, 32, 32)  # one MiB, some milliseconds
ROUNDS = 3


@functools.lru_cache(maxsize=1)
def making_bandwidth() -> float:
    """Return the speed of batch norm and ReLU, the chain that there is most of; the best of some rounds."""
    with torch.no_grad():
        x = torch.ones(PROBE, device="cpu")
        best = min(_seconds(x) for _ in range(ROUNDS))
    return 2 * x.nbytes / max(best, 1e-9)


def _seconds(x: torch.Tensor) -> float:
    start = time.perf_counter()
    functional.relu(functional.batch_norm(x, None, None, training=True))
    return time.perf_counter() - start
