"""Policies that are given memory instead of a method: Budget and Hybrid.

    slimgrad.attach(model, criterion, policy=slimgrad.Budget("4GiB"))

Per tensor, whichever of keeping, making again (recipes.py), coding and, with Hybrid, swapping to disk costs the least
time, so that the peak fits. The order of events: the first forward runs on fake tensors and says at once when nothing
fits, and what would; the first real step uses the most frugal plan; from then on the plan is made from measured sizes
and times. It is made anew when shapes change or ratios drift, is part of the session's state, and explains itself in
the report.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from slimgrad.errors import ConfigError
from slimgrad.planner.budget_size import Size, nbytes_of
from slimgrad.planner.planned import Planned
from slimgrad.planner.timeline import AGAIN, CODE, DISK, KEEP
from slimgrad.policy import COMPRESS, Plan, RoleBound
from slimgrad.policy import DISK as DISK_TIER
from slimgrad.roles import Role

RESIDENT, LIVE = COUNTS = ("resident", "live")


@dataclass(frozen=True, slots=True)
class Budget:
    """Keep, make again or code each tensor so that the peak stays within `size`: bytes, "4GiB", "80%" or "auto".

    `counts` says of what: "resident", the process's resident set, or "live", the bytes of tensors alone.
    """

    size: Size = "auto"
    counts: str = RESIDENT

    directory = None
    tier = ""

    def __post_init__(self) -> None:
        nbytes_of(self.size)
        if self.counts not in COUNTS:
            raise ConfigError(f"expected counts='resident' or counts='live', got {self.counts!r}")

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return the most frugal way to keep a tensor in memory; a session asks `Planned` instead."""
        return COMPRESS.plan(role, tensor, bound)

    def begin(self) -> Planned:
        """Return what a session keeps of the plan."""
        return Planned(nbytes_of(self.size), (KEEP, AGAIN, CODE), self.counts == LIVE)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The same, and tensors may leave for a file in `directory`, or in the system's temporary one."""

    size: Size = "auto"
    directory: str | os.PathLike[str] | None = None
    counts: str = RESIDENT

    tier = DISK_TIER

    def __post_init__(self) -> None:
        Budget(self.size, self.counts)

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return the most frugal way to keep a tensor in memory; a session asks `Planned` instead."""
        return COMPRESS.plan(role, tensor, bound)

    def begin(self) -> Planned:
        """Return what a session keeps of the plan."""
        return Planned(nbytes_of(self.size), (KEEP, AGAIN, CODE, DISK), self.counts == LIVE, self.directory)
