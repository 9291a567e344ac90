"""The peak memory of one call, as budgets mean it.

Resident     on a CPU: the high-water mark of the resident set, everything in the process included
Reserved     on an accelerator: what its allocator took from the device
Live         the bytes of live tensors: exact, knows no allocator; also where a system has no high-water mark
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from slimgrad.errors import ConfigError
from slimgrad.planner.out_of_memory import give_back_memory
from slimgrad.report.memory import LiveBytes, reset_resident_peak, resident_peak

if TYPE_CHECKING:
    from slimgrad.session import Session


class Meter(Protocol):
    """What `fit_batch` asks of a way to measure."""

    name: str

    def peak_of(self, call: Callable[[], object]) -> int:
        """Run the call and return the peak in bytes."""
        ...


class Resident:
    """Peak resident set."""

    name = "resident"

    def peak_of(self, call: Callable[[], object]) -> int:
        give_back_memory()  # else the allocator's leftovers of a larger step count for this one
        reset_resident_peak()
        call()
        return resident_peak() or 0


class Reserved:
    """Peak of what the accelerator's allocator reserved."""

    name = "reserved"

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)

    def peak_of(self, call: Callable[[], object]) -> int:
        give_back_memory()
        torch.accelerator.reset_peak_memory_stats(self._device)
        call()
        torch.accelerator.synchronize(self._device)
        return torch.accelerator.max_memory_reserved(self._device)


class Live:
    """Peak of the bytes of all tensors that pass through an operator, and of the pools of these sessions."""

    name = "live"

    def __init__(self, *sessions: Session) -> None:
        self._shelves = [session.shelf for session in sessions]

    def peak_of(self, call: Callable[[], object]) -> int:
        with LiveBytes(self._pooled, self._owns) as live:
            call()
        return live.peak

    def _pooled(self) -> int:
        return sum(shelf.arena.nbytes_touched + shelf.buffers.nbytes_held for shelf in self._shelves)

    def _owns(self, address: int) -> bool:
        return any(shelf.arena.owns(address) or shelf.buffers.owns(address) for shelf in self._shelves)


def meter_of(kind: str | Meter | None, device: torch.device | str | None) -> Meter:
    """Return the meter of this name; by default the one that fits the device and the system."""
    if kind is not None and not isinstance(kind, str):
        return kind
    is_accelerator = device is not None and torch.device(device).type != "cpu"
    if kind is None:
        kind = "reserved" if is_accelerator else "resident" if reset_resident_peak() else "live"
    if kind == "reserved" and is_accelerator:
        return Reserved(device)  # pyright: ignore[reportArgumentType]
    if kind not in ("resident", "live"):
        raise ConfigError(f"expected meter 'resident', 'live', or 'reserved' with an accelerator, got {kind!r}")
    return Resident() if kind == "resident" else Live()
