"""A probe of the disk says what swapping costs, and leaves nothing behind."""

from __future__ import annotations

import time

from slimgrad.planner import planned
from slimgrad.planner.budget import Budget, Hybrid
from slimgrad.planner.disk_speed import ASSUMED, disk_bandwidth
from slimgrad.storage import Disk


def test_it_is_measured_and_leaves_no_file(tmp_path, monkeypatch):
    found = disk_bandwidth(tmp_path)
    assert 1e6 < found < 1e11
    assert found != ASSUMED
    assert list(tmp_path.iterdir()) == []
    write = Disk.write

    def slow(disk, payload):
        time.sleep(0.5)
        return write(disk, payload)

    monkeypatch.setattr(Disk, "write", slow)
    assert disk_bandwidth(tmp_path, 1 << 20) < 2 * (1 << 20) / 0.5


def test_a_directory_that_will_not_do_is_assumed_to_be_usual(tmp_path):
    assert disk_bandwidth(tmp_path / "none") == ASSUMED


def test_plans_that_may_swap_probe_their_own_directory(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(planned, "disk_bandwidth", lambda directory: asked.append(directory) or 1e9)
    Hybrid("1GiB", tmp_path).begin()
    Budget("1GiB").begin()
    assert asked == [tmp_path]
