"""How long a step takes on an accelerator under each way to keep activations: a simulation from published figures.

In the manner of cDMA's evaluation: compute times by layer, transfers scaled by the compression ratio, and the two
overlapped as the system overlaps them. One model serves all of them; they differ in four figures:

    rate     bytes of activation per second that leave (and come back): link x ratio, or a compressor's speed
    window   layers by which compute may run ahead of the transfers; 1 waits after every layer, as vDNN does
    slows    share by which compute is slower while the other stream runs
    inline   nothing is overlapped

Forward, layer i may start when the transfer of layer i - window is done, and its activation leaves from then on;
backward does not begin before all have left, and layer i starts when its activation is back, asked for `window` layers
ahead. ASSUMPTIONS is what else is assumed, and is printed with every estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slimgrad.planner.hardware import Device
from slimgrad.planner.op_trace import Layer, Work

COMPUTE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.5, 0.8, 0.8  # of the published peaks that training gets
ZVC_RATIO = 2.6  # cDMA's mean over its six networks, all of ReLU without batch norm
ZVC_GROWTH = 1.03  # of dense data: one bit of mask per value
ZFP_SHARE = 0.078  # of memory bandwidth: 70 GB/s on a V100, as cuSZ's authors measured it
NESTED_SHARE = 0.4  # of memory bandwidth: one read of the values, little written; our kernel, not measured on hardware
STREAM_COST = 0.05  # slow-down of compute while a compressor runs on another stream
ASSUMPTIONS = (
    f"shares of peak: {COMPUTE_SHARE:.0%} of FLOP/s, {MEMORY_SHARE:.0%} of memory, {LINK_SHARE:.0%} of link bandwidth",
    f"cDMA: zero-value compression by {ZVC_RATIO}x of what ReLU made, in the memory controllers; the rest is dense",
    f"FreeLunch: ZFP at {ZFP_SHARE:.1%} of memory bandwidth on a stream that slows compute by {STREAM_COST:.0%}",
    f"slimgrad: codes at {NESTED_SHARE:.0%} of memory bandwidth, not overlapped; never measured on a GPU",
    "checkpoint: every layer's forward runs twice",
)


@dataclass(frozen=True, slots=True)
class System:
    """How activations leave; see the module's docstring."""

    name: str
    rate: float = float("inf")  # of sparse activations
    dense_rate: float | None = None  # of others; None: the same
    window: int = 1
    slows: float = 0.0
    is_inline: bool = False


def systems(device: Device) -> dict[str, System]:
    """Return what each system does on this device."""
    link = device.link_bandwidth * LINK_SHARE
    memory = device.memory_bandwidth * MEMORY_SHARE
    zvc, dense = min(link * ZVC_RATIO, memory), link / ZVC_GROWTH
    zfp = device.memory_bandwidth * ZFP_SHARE
    nested = device.memory_bandwidth * NESTED_SHARE
    found = (
        System("plain"),
        System("swap (vDNN)", link),
        System("swap, asynchronous", link, window=2),
        System("cDMA", zvc, dense),
        System("FreeLunch", zfp, window=2, slows=STREAM_COST),
        System("slimgrad", nested, is_inline=True),
    )
    return {system.name: system for system in found}


@dataclass(frozen=True, slots=True)
class Timed:
    """One layer: seconds forward and backward, and the bytes that leave after it."""

    forward: float
    backward: float
    nbytes: int
    is_sparse: bool = True


def timed(layers: Sequence[Layer], tail: Work, device: Device, is_low_precision: bool = False) -> list[Timed]:
    """Return the layers' times on a device; the loss is one more, of which nothing leaves."""
    flops = (device.low_precision_flops if is_low_precision else device.flops) * COMPUTE_SHARE
    bandwidth = device.memory_bandwidth * MEMORY_SHARE
    found = [
        Timed(
            layer.forward.seconds(flops, bandwidth),
            layer.backward.seconds(flops, bandwidth),
            layer.nbytes if layer.is_values else 0,
            layer.is_sparse,
        )
        for layer in layers
    ]
    return [*found, Timed(tail.seconds(flops, bandwidth), 0.0, 0)]


def step_seconds(layers: Sequence[Timed], system: System) -> float:
    """Return the time of forward and backward."""
    rates = {True: system.rate, False: system.dense_rate or system.rate}
    transfers = [layer.nbytes / rates[layer.is_sparse] for layer in layers]
    if system.is_inline:
        return sum(layer.forward + layer.backward for layer in layers) + 2 * sum(transfers)
    slower = 1.0 + (system.slows if system.rate != float("inf") else 0.0)
    forward = _forward([layer.forward * slower for layer in layers], transfers, system.window)
    return forward + _backward([layer.backward * slower for layer in layers], transfers, system.window)


def checkpoint_seconds(layers: Sequence[Timed]) -> float:
    """Return the time with every forward run a second time."""
    return sum(2 * layer.forward + layer.backward for layer in layers)


def _forward(compute: Sequence[float], transfers: Sequence[float], window: int) -> float:
    clock = link = 0.0
    done: list[float] = []
    for number, seconds in enumerate(compute):
        start = max(clock, done[number - window]) if number >= window else clock
        link = max(link, start) + transfers[number]
        done.append(link)
        clock = start + seconds
    return max(clock, link)


def _backward(compute: Sequence[float], transfers: Sequence[float], window: int) -> float:
    clock = link = 0.0
    starts: list[float] = []
    for number, (seconds, transfer) in enumerate(zip(reversed(compute), reversed(transfers), strict=True)):
        asked = starts[number - window] if number >= window else 0.0
        link = max(link, asked) + transfer
        starts.append(max(clock, link))
        clock = starts[-1] + seconds
    return clock
