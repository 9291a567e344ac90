"""Limits that the kernel sets on processes that benches start: memory, and the bandwidth of a disk. Needs root.

    with memory_group(2 << 30) as group:            a process in it is killed when it takes more
        join(group, process.pid)
    with disk_group("/var/tmp", 100 * 10**6):       its processes read and write that disk at 100 MB/s at most

Both versions of control groups are known; where none can be made, OSError says so.

Note [Nothing is left behind]. A group lives in the kernel until somebody removes it, and who made it may be killed. So
each has a guard, a small process that waits for the end of a pipe which its maker holds: whichever way the maker ends,
the guard then ends what is still in the group and removes it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
GUARD = """
import os, signal, sys, time
sys.stdin.read()
for _ in range(30_000):
    try:
        with open(sys.argv[1] + "/cgroup.procs") as members:
            for member in members.read().split():
                os.kill(int(member), signal.SIGKILL)
        os.rmdir(sys.argv[1])
    except FileNotFoundError:
        break
    except OSError:
        pass
    time.sleep(0.02)
"""


def memory_group(nbytes: int, root: Path = ROOT) -> contextlib.AbstractContextManager[Path]:
    """Return a context with a group whose processes together have so much memory, and no swap."""
    if (root / "memory").is_dir():
        return _group(root / "memory", {"memory.limit_in_bytes": str(nbytes)})
    return _group(root, {"memory.max": str(nbytes), "memory.swap.max": "0"})


def disk_group(directory: str, rate: int, root: Path = ROOT) -> contextlib.AbstractContextManager[Path]:
    """Return a context with a group whose processes read and write the directory's disk at `rate` bytes/s at most."""
    device = _disk_of(directory)
    if (root / "blkio").is_dir():
        limits = {f"blkio.throttle.{way}_bps_device": f"{device} {rate}" for way in ("read", "write")}
        return _group(root / "blkio", limits)
    return _group(root, {"io.max": f"{device} rbps={rate} wbps={rate}"})


def join(group: Path, process: int) -> None:
    """Put a process into the group; what it allocates from now on counts there."""
    (group / "cgroup.procs").write_text(str(process))


def can_limit_memory() -> bool:
    """Return whether a group with a limit can be made here."""
    try:
        with memory_group(1 << 30):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _group(parent: Path, limits: Mapping[str, str]) -> Iterator[Path]:
    if not (parent / "cgroup.procs").exists():
        raise OSError(f"expected control groups in {parent}, got none")
    group = parent / f"slimgrad-{os.getpid()}-{os.urandom(4).hex()}"
    group.mkdir()
    guard = subprocess.Popen([sys.executable, "-c", GUARD, str(group)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        yield group
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _disk_of(directory: str) -> str:
    """Return major:minor of the whole disk: limits do not work on partitions."""
    number = os.stat(directory).st_dev
    own = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    return ((own.parent if (own / "partition").exists() else own) / "dev").read_text().strip()
