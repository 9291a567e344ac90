"""Meters measure the peak of one call."""

from __future__ import annotations

import pytest
import torch

from slimgrad.errors import ConfigError
from slimgrad.planner.meters import Live, Resident, meter_of

MIB = 1 << 20


def test_live_bytes_are_exact():
    assert Live().peak_of(lambda: torch.empty(3 * MIB, dtype=torch.uint8).add(1)) == 6 * MIB


def test_the_resident_set_sees_memory_that_is_touched_and_given_back():
    def touch() -> None:
        torch.ones(64 * MIB, dtype=torch.uint8)

    meter = Resident()
    before = meter.peak_of(lambda: None)
    assert 60 * MIB < meter.peak_of(touch) - before < 80 * MIB
    assert meter.peak_of(lambda: None) - before < 8 * MIB


def test_the_meter_fits_the_device():
    assert meter_of(None, None).name in ("resident", "live")
    assert meter_of("live", None).name == "live"
    own = Live()
    assert meter_of(own, None) is own
    with pytest.raises(ConfigError, match=r"expected meter 'resident', 'live', or 'reserved' .* got 'reserved'"):
        meter_of("reserved", "cpu")
