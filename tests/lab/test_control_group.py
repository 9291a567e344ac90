"""Groups limit what is in them, and are gone however their maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slimgrad.lab import control_group
from slimgrad.lab.control_group import can_limit_memory, disk_group, join, memory_group

MIB = 1 << 20
HOG = "import sys; sys.stdin.readline(); kept = bytearray(int(sys.argv[1]) << 20); print('done')"
MAKER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
sys.path.insert(0, sys.argv[1])  # the module alone, without torch
from control_group import memory_group
with memory_group(1 << 28) as group:
    print(group, flush=True)
    time.sleep(60)
"""

needs_groups = pytest.mark.skipif(not can_limit_memory(), reason="no control groups can be made here")


def hog(group: Path, mebibytes: int) -> int:
    """Return how a process ends that takes so much memory."""
    command = [sys.executable, "-c", HOG, str(mebibytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        join(group, process.pid)
        process.communicate("go\n")
    return process.returncode


@needs_groups
def test_who_takes_too_much_memory_is_killed():
    with memory_group(64 * MIB) as group:
        assert hog(group, 16) == 0
        assert hog(group, 128) == -signal.SIGKILL
    assert not group.exists()


@needs_groups
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_killed_maker_leaves_no_group(number):
    command = [sys.executable, "-c", MAKER, str(Path(control_group.__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as maker:
        assert maker.stdout is not None
        group = Path(maker.stdout.readline().strip())
        assert group.is_dir()
        os.kill(maker.pid, number)
        maker.wait()
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not group.exists()


def test_both_versions_are_known(tmp_path):
    first, second = tmp_path / "first" / "memory", tmp_path / "second"
    for root in (first, second):
        root.mkdir(parents=True)
        (root / "cgroup.procs").touch()
    with memory_group(123, first.parent) as group:
        assert group.parent == first
        assert (group / "memory.limit_in_bytes").read_text() == "123"
        _empty(group)
    with memory_group(456, second) as group:
        assert group.parent == second
        assert (group / "memory.max").read_text() == "456"
        _empty(group)
    with pytest.raises(OSError, match=r"expected control groups in"), memory_group(1, tmp_path / "none"):
        pass


def test_a_disk_is_named_by_its_numbers(tmp_path):
    (tmp_path / "cgroup.procs").touch()
    try:
        made = disk_group("/var/tmp", 1000, tmp_path)
    except OSError:
        pytest.skip("the directory is on no disk")
    with made as group:
        device, read, write = (group / "io.max").read_text().split()
        assert all(part.isdigit() for part in device.split(":"))
        assert (read, write) == ("rbps=1000", "wbps=1000")
        _empty(group)


def _empty(group: Path) -> None:
    """In the kernel a group's files go with it."""
    for file in group.iterdir():
        file.unlink()
