"""Accelerators by their published figures: memory, peak FLOP/s, memory bandwidth, bandwidth of the link to the host.

Peaks are those of NVIDIA's data sheets of V100, T4, A100 (SXM), L4 and H100 (SXM), and of its whitepapers of Ampere and
Ada for the RTX cards, at boost clocks and without sparsity; of the two Titans, cores x 2 x boost clock of the product
pages (3072 at 1075 MHz, 3840 at 1582 MHz). Low precision is tensor cores that add in float32. Most figures were
compared with copies of those sheets by third parties; H100 in float32, RTX 3090 and Titan Xp were not. What training
gets of a peak is a share, and the shares are assumptions: they are printed with every estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from slimgrad.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks in bytes, FLOP/s and bytes/s; the link is PCI Express, one direction."""

    name: str
    memory: int
    flops: float  # float32, the plain units
    low_precision_flops: float  # bfloat16 or float16 with dense tensor cores, or as float32 where there are none
    memory_bandwidth: float
    link_bandwidth: float


def _device(name: str, gib: float, tflops: float, low_tflops: float, memory_gbs: float, link_gbs: float) -> Device:
    return Device(name, int(gib * GIB), tflops * 1e12, low_tflops * 1e12, memory_gbs * 1e9, link_gbs * 1e9)


GEN3, GEN4, GEN5 = 15.75, 31.5, 63.0  # GB/s of sixteen lanes, after line coding
DEVICES = {
    device.name: device
    for device in (
        _device("titan-x", 12, 6.6, 6.6, 336.5, GEN3),  # Maxwell, 2015: FreeLunch's
        _device("titan-xp", 12, 12.15, 12.15, 547.7, GEN3),  # Pascal, 2017: cDMA's
        _device("v100-16gb", 16, 15.7, 125, 900, GEN3),
        _device("v100-32gb", 32, 15.7, 125, 900, GEN3),
        _device("t4", 16, 8.1, 65, 320, GEN3),
        _device("rtx3090", 24, 35.6, 71, 936, GEN4),
        _device("a100-40gb", 40, 19.5, 312, 1555, GEN4),
        _device("a100-80gb", 80, 19.5, 312, 2039, GEN4),
        _device("l4", 24, 30.3, 121, 300, GEN4),
        _device("rtx4090", 24, 82.6, 165, 1008, GEN4),
        _device("h100-80gb", 80, 66.9, 989, 3350, GEN5),
    )
}


def device_of(name: str) -> Device:
    """Return the device of this name."""
    if name not in DEVICES:
        raise ConfigError(f"expected one of the devices {', '.join(DEVICES)}, got {name!r}")
    return DEVICES[name]
