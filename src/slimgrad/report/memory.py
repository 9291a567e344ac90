"""Measured memory: what the process and the accelerator really held, and what live tensors add up to.

    meter = PeakMeter()                    remembers where it starts
    meter.read() -> Peak

The resident set is the truth on a CPU and depends on the allocator and on everything else in the process; live bytes
(`LiveBytes`) are exact and repeatable and know nothing of allocators. A claim about memory needs both.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

POOLED = -1  # instead of the size of a storage that a pool accounts for


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak memory since `since`; None where the system does not tell."""

    resident: int | None
    resident_before: int | None  # resident set when the measurement began
    accelerator: int | None
    device: str | None
    since: str  # "attach" where the high-water mark could be reset, else "the process began"


def resident_now() -> int | None:
    """Return the bytes of this process that are in memory."""
    return _status("VmRSS")


def resident_peak() -> int | None:
    """Return the largest resident set since the process began or since the mark was reset."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_resident_peak() -> bool:
    """Set the high-water mark to the present resident set; return whether the system let us."""
    try:
        with open("/proc/self/clear_refs", "w") as control:
            control.write("5")
    except OSError:
        return False
    return True


class PeakMeter:
    """Peak memory from here on."""

    def __init__(self) -> None:
        self._was_reset = reset_resident_peak()
        self._before = resident_now()
        self._device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if self._device is not None:
            torch.accelerator.reset_peak_memory_stats()

    def read(self) -> Peak:
        """Return the peak so far."""
        on_device = None if self._device is None else torch.accelerator.max_memory_allocated()
        return Peak(
            resident=resident_peak(),
            resident_before=self._before,
            accelerator=on_device,
            device=None if self._device is None else self._device.type,
            since="attach" if self._was_reset else "the process began",
        )


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all live tensor storages that pass through an operator, each storage once.

        with LiveBytes(pooled=lambda: arena.nbytes_touched + buffers.nbytes_held, owns=arena.owns) as live:
            live.track(*model.parameters())
            step()
        live.peak

    Memory that `owns(address)` claims is not counted storage by storage: `pooled()` says what it holds in all.
    """

    def __init__(self, pooled: Callable[[], int] | None = None, owns: Callable[[int], bool] | None = None) -> None:
        super().__init__()
        self._pooled = pooled or (lambda: 0)
        self._owns = owns or (lambda address: False)
        self._storages: dict[weakref.ref, int] = {}
        self.now = 0
        self.peak = 0
        self.peak_at = ""  # the operator after which the peak was reached

    def track(self, *tensors: torch.Tensor) -> None:
        """Count tensors that exist already."""
        self._count(tensors)
        self._note_peak("tracked")

    def reset_peak(self) -> None:
        """Begin a new peak at what is live now."""
        self.peak = 0
        self._note_peak("reset")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._count(leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor))
        self._note_peak(str(func))
        return out

    def _note_peak(self, where: str) -> None:
        live = self.now + self._pooled()
        if live > self.peak:
            self.peak = live
            self.peak_at = where

    def _count(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = weakref.ref(storage, self._died)
            before = self._storages.get(key)
            if before is None:
                before = self._storages[key] = POOLED if self._is_pooled(storage) else 0
            size = storage.nbytes()
            if before not in (POOLED, size):  # new, or resized
                self._storages[key] = size
                self.now += size - before

    def _is_pooled(self, storage: torch.UntypedStorage) -> bool:
        return storage.device.type == "meta" or self._owns(storage.data_ptr())  # fake tensors have no memory

    def _died(self, key: weakref.ref) -> None:
        self.now -= max(self._storages.pop(key, 0), 0)


def _status(field: str) -> int | None:
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
