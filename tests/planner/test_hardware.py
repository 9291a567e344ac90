"""Devices by name."""

from __future__ import annotations

import pytest

from slimgrad.errors import ConfigError
from slimgrad.planner.hardware import DEVICES, GIB, device_of


def test_figures_are_in_the_units_they_claim():
    a100 = device_of("a100-40gb")
    assert (a100.memory, a100.flops, a100.memory_bandwidth) == (40 * GIB, 19.5e12, 1555e9)
    for device in DEVICES.values():
        assert device.flops <= device.low_precision_flops
        assert 5e9 < device.link_bandwidth < device.memory_bandwidth


def test_an_unknown_device_lists_the_known():
    with pytest.raises(ConfigError, match=r"expected one of the devices titan-x, .*, got 'abacus'"):
        device_of("abacus")
