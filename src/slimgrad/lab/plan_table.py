"""Will it fit, at which batch, how fast: every way to keep activations, on one device, without running the model.

    plan = make(Setup("resnet50", batch=256), device_of("a100-40gb"))
    plan.rows           saved, stored and peak bytes, the largest batch, seconds per step
    print(render(plan))

Memory comes from FakeTensor runs (planner/fake_run.py), time from the simulator (planner/simulator.py). The largest
batch is where a line through predictions reaches the device's memory less a reserve; since the peak is the largest of
several lines, the batch found so is predicted in its turn, and the line drawn again: now it lies above the peak.
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from slimgrad.lab.arms import Setup, bound_of
from slimgrad.lab.predictions import arm_options, workload_of
from slimgrad.planner import simulator
from slimgrad.planner.fake_run import Prediction, Workload, predict
from slimgrad.planner.fit_batch import RESERVE, Line
from slimgrad.planner.hardware import Device
from slimgrad.planner.op_trace import OpTrace
from slimgrad.planner.rates import Rates
from slimgrad.policy import DISK, Compress, Swap

FREELUNCH_RATIO, FREELUNCH_BUFFERS = 5.0, 3  # its fixed rate, and the persistent buffers of a net without branches


class Way(NamedTuple):
    """One way to keep activations: how its memory is predicted, and how its time."""

    options: dict[str, Any]
    system: str  # of the simulator; "": checkpointing
    buffers: int = 0  # of the largest activation, held all the time


@dataclass(frozen=True, slots=True)
class Row:
    """One way on the device, at the batch that was asked for."""

    way: str
    stored: int  # held for backward when forward has ended
    peak: int
    fits: bool
    largest_batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The whole answer."""

    setup: Setup
    device: Device
    static: int
    saved: int
    rows: tuple[Row, ...]
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def ways(setup: Setup) -> dict[str, Way]:
    """Return the ways that are compared."""
    swap = {"policy": Swap(DISK, compress=False, min_bytes=0)}  # leaves the device: what the tier is does not matter
    lossy = {"policy": Compress(), "bound": bound_of("relative:0.5"), "rates": Rates(flat=FREELUNCH_RATIO)}
    return {
        "plain": Way({}, "plain"),
        "checkpoint": Way(arm_options(setup, "checkpoint"), ""),
        "swap (vDNN)": Way(swap, "swap (vDNN)"),
        "cDMA": Way(swap, "cDMA"),
        "FreeLunch": Way(lossy, "FreeLunch", FREELUNCH_BUFFERS),
        "slimgrad": Way(arm_options(setup, "slim"), "slimgrad"),
    }


def make(setup: Setup, device: Device) -> DevicePlan:
    """Return memory and time of every way."""
    setup = setup.filled()
    work, trace = workload_of(setup), OpTrace()
    predict(work, setup.batch, watch=lambda: trace)
    layers = simulator.timed(trace.layers, trace.tail, device, bool(setup.autocast))
    systems = simulator.systems(device)
    largest = max((layer.nbytes for layer in trace.layers), default=0)
    rows, found = [], {}
    for name, way in ways(setup).items():
        key = repr(way.options), way.buffers
        if key not in found:
            found[key] = _memory(work, setup.batch, way, way.buffers * largest, device)
        seconds = simulator.step_seconds(layers, systems[way.system]) if way.system else None
        seconds = simulator.checkpoint_seconds(layers) if seconds is None else seconds
        prediction, peak, batch = found[key]
        rows.append(Row(name, prediction.held, peak, peak <= _limit(device), batch, seconds))
    last = found[key][0]
    return DevicePlan(setup, device, last.static, last.saved, tuple(rows), simulator.ASSUMPTIONS)


def _limit(device: Device) -> float:
    return device.memory * (1 - RESERVE)


def _memory(work: Workload, batch: int, way: Way, buffers: int, device: Device) -> tuple[Prediction, int, int]:
    """Return the prediction at this batch, its peak with the way's buffers, and the largest batch that fits."""

    def peak(prediction: Prediction) -> int:
        return prediction.peak + buffers * prediction.batch // batch

    at_batch, doubled = (predict(work, n, **way.options) for n in (batch, 2 * batch))
    line = _line((batch, peak(at_batch)), (2 * batch, peak(doubled)))
    largest = line.largest(_limit(device))
    if largest > 2 * batch:
        beyond = predict(work, largest, **way.options)
        largest = _line((2 * batch, peak(doubled)), (largest, peak(beyond))).largest(_limit(device))
    return at_batch, peak(at_batch), largest


def _line(small: tuple[int, int], large: tuple[int, int]) -> Line:
    slope = max((large[1] - small[1]) / (large[0] - small[0]), 1.0)
    return Line(large[1] - slope * large[0], slope)


def render(plan: DevicePlan) -> str:
    """Return the plan as text."""
    gib = 1 << 30
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("")
    for heading in ("stored", "peak", "fits", "largest batch", "ms/step", "examples/s"):
        table.add_column(heading, justify="right")
    for row in plan.rows:
        table.add_row(
            row.way,
            f"{row.stored / gib:.2f} GiB",
            f"{row.peak / gib:.2f} GiB",
            "yes" if row.fits else "no",
            f"{row.largest_batch:,}",
            f"{row.seconds * 1e3:,.1f}",
            f"{plan.setup.batch / row.seconds:,.0f}",
        )
    console = Console(file=io.StringIO(), width=118, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    head = f"{plan.setup} on {plan.device.name} ({plan.device.memory / gib:.0f} GiB): "
    head += f"static {plan.static / gib:.2f} GiB, saved by plain PyTorch {plan.saved / gib:.2f} GiB"
    body = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([head, *body, "Times are estimates. Assumed:", *(f"- {text}" for text in plan.assumptions)])
