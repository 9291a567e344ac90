"""How much memory there is, and how much of it a budget means. The one place that reads budgets.

    nbytes_of(4 << 30)      bytes                     nbytes_of("80%")     a share of all there is
    nbytes_of("4GiB")       "512 MB", "1.5g" too      nbytes_of("auto")    what this process has now and what is left

All there is: the accelerator's memory, or on a CPU the least of the machine's memory, the limits of the control groups
that this process is in, and its own address space limit. On a CPU a budget is about the resident set of this process,
on an accelerator about the bytes that its allocator reserves; both include what is already there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch

from slimgrad.errors import ConfigError
from slimgrad.report.memory import resident_now

Size = int | float | str

GRAMMAR = "write a number of bytes, '4GiB', '512MB', '80%' (of all there is) or 'auto' (what is left)"
UNITS = {"": 1, "b": 1}
for power, letter in enumerate("kmgt", start=1):
    UNITS |= {letter: 1024**power, f"{letter}ib": 1024**power, f"{letter}b": 1000**power}
NO_LIMIT = 1 << 60  # control groups of the first version say "none" by a number near 2^63


class Room(NamedTuple):
    """Memory in bytes: all that there is for this process, and what it could still get."""

    total: int
    left: int


def nbytes_of(budget: Size, device: torch.device | str | None = None) -> int:
    """Return the bytes that a budget stands for on this device; None means the CPU."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        raise ConfigError(f"expected a memory budget, got {budget!r}; {GRAMMAR}")
    if isinstance(budget, (int, float)):
        return _positive(budget, budget)
    text = budget.strip().lower()
    if text == "auto":
        return used_now(device) + room(device).left
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]*)", text)
    if found is None or found[2] not in ("%", *UNITS):
        raise ConfigError(f"expected a memory budget, got {budget!r}; {GRAMMAR}")
    if found[2] == "%":
        if not 0 < float(found[1]) <= 100:
            raise ConfigError(f"expected a share above 0% and up to 100%, got {budget!r}; write '80%'")
        return int(room(device).total * float(found[1]) / 100)
    return _positive(float(found[1]) * UNITS[found[2]], budget)


def room(device: torch.device | str | None = None) -> Room:
    """Return how much memory the device has."""
    if _is_accelerator(device):
        free, total = torch.accelerator.get_memory_info(device)
        return Room(total, free)
    total, left = _machine()
    for limit, used in _control_groups():
        total, left = min(total, limit), min(left, max(limit - used, 0))
    limit, rest = _address_space()
    return Room(int(min(total, limit)), int(min(left, rest)))


def used_now(device: torch.device | str | None = None) -> int:
    """Return the bytes that this process holds now, of the kind that budgets are about."""
    if _is_accelerator(device):
        return torch.accelerator.memory_reserved(device)
    return resident_now() or 0


def _is_accelerator(device: torch.device | str | None) -> bool:
    return device is not None and torch.device(device).type not in ("cpu", "meta")


def _positive(nbytes: float, budget: Size) -> int:
    if not 1 <= nbytes < float("inf"):
        raise ConfigError(f"expected a memory budget of at least one byte, got {budget!r}; {GRAMMAR}")
    return int(nbytes)


def _machine() -> tuple[int, int]:
    sizes = _table(Path("/proc/meminfo"))
    if "MemTotal:" in sizes:
        total = sizes["MemTotal:"] * 1024
        return total, sizes.get("MemAvailable:", sizes["MemTotal:"]) * 1024
    import os  # not Linux: all of the physical memory, for want of better knowledge

    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        raise ConfigError("expected a system that says how much memory it has, got none; write '4GiB'") from None
    return total, total


def _address_space() -> tuple[float, float]:
    """Return the limit of this process's address space, whole and what is left of it."""
    try:
        import resource
    except ImportError:  # Windows
        return float("inf"), float("inf")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf"), float("inf")
    used = _table(Path("/proc/self/status")).get("VmSize:", 0) * 1024
    return limit, max(limit - used, 0)


def _control_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[tuple[int, int]]:
    """Return limit and use of every memory control group around this process; page cache counts as free."""
    found = []
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, files = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, files = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = base / path.strip("/")
        for place in [group, *(parent for parent in group.parents if parent.is_relative_to(base))]:
            limit, used = _number(place / files[0]), _number(place / files[1])
            if limit is not None and limit < NO_LIMIT:
                cache = _table(place / "memory.stat").get(files[2], 0)
                found.append((limit, max((used or 0) - cache, 0)))
    return found


def _number(path: Path) -> int | None:
    words = _lines(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _table(path: Path) -> dict[str, int]:
    """Return the lines `name number ...` of a file."""
    rows = [line.split() for line in _lines(path)]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
