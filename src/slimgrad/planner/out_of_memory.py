"""Allocation failures: how to know one, and how to get the memory of the failed step back.

A failed allocation leaves tensors alive in the frames of its traceback; they are cleared first. What the allocators of
torch and of the C library keep for later goes back to the device and to the system.
"""

from __future__ import annotations

import gc
import traceback

import torch

from slimgrad.storage.freed import Freed

PHRASES = (
    "not enough memory",
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error, or one that it was raised from, is a failed allocation."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, (RuntimeError, OSError)) and any(phrase in str(error).lower() for phrase in PHRASES):
            return True
        error = error.__cause__  # pyright: ignore[reportAssignmentType]
    return False


def give_back_memory(error: BaseException | None = None) -> None:
    """Free what nobody needs: the tensors in the frames of the error, and what allocators keep for later."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    Freed.trim(0)
