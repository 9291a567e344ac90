"""How much memory a training step takes: plain, slim and checkpointed, each in a fresh process, measured in three ways.

    resident   the high-water mark of the resident set: the truth, with the allocator and the libraries in it
    huge       the same in processes where torch asks for huge pages, which let a session give freed memory back
    live       the bytes of all live tensors after every operator, pools and arena counted whole: exact and repeatable

Static memory (parameters, buffers, gradients, optimiser state, one batch) is there before the first step and is taken
off both. The first step counts: a peak that falls only later would not help who runs out of memory in it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from slimgrad.lab.arms import ARMS, Material, Setup, Step, in_fresh_process, setup_of
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES
from slimgrad.planner.out_of_memory import give_back_memory
from slimgrad.report.memory import LiveBytes, reset_resident_peak, resident_now, resident_peak
from slimgrad.session import Session

STEPS = 3
KINDS = ("live", "resident", "huge")


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes of one arm."""

    static: int
    peak: int
    peak_at: str = ""  # the operator after which the live peak was reached
    saved_ratio: float | None = None  # over all saved activations, from the session's report
    coded_ratio: float | None = None
    planned: int = 0  # peak that a policy with a budget predicted for its last plan

    @property
    def beyond_static(self) -> int:
        return self.peak - self.static


def measure(setup: Setup, arms: tuple[str, ...] = ARMS, kinds: tuple[str, ...] = KINDS) -> dict[str, dict[str, Weight]]:
    """Return the weights by kind and arm; every one comes from its own process."""
    return {kind: {arm: measure_one(setup, arm, kind) for arm in arms} for kind in kinds}


def measure_one(setup: Setup, arm: str, kind: str) -> Weight:
    """Return the weight of one arm in a fresh process."""
    environment = ASK_FOR_HUGE_PAGES if kind == "huge" else {}
    return Weight(**json.loads(in_fresh_process(__name__, setup, arm, kind, **environment)))


def weigh(setup: Setup, arm: str, kind: str) -> Weight:
    """Return the weight of one arm in this process, which should be a fresh one."""
    material = Material(setup)
    load_libraries(material)
    step = Step(material, arm)
    static, peak, peak_at = weigh_live(material, step) if kind == "live" else weigh_resident(step)
    if step.session is None:
        return Weight(static, peak, peak_at)
    report = step.session.report()
    planned = 0 if step.session.planned is None else step.session.planned.peak
    return Weight(static, peak, peak_at, report.saved_ratio, report.coded_ratio, planned)


def load_libraries(material: Material) -> None:
    """Run one example through the plain model: code that is loaded or made on first use is not the arm's memory."""
    buffers = [buffer.clone() for buffer in material.model.buffers()]
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(material.setup.autocast)):
        material.model.eval()(material.inputs[:1]).sum().backward()
    material.model.train()
    for buffer, before in zip(material.model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    material.optimizer.zero_grad(set_to_none=False)


def weigh_resident(step: Step) -> tuple[int, int, str]:
    """Return static and peak resident set over the first steps."""
    give_back_memory()
    reset_resident_peak()
    static = resident_now() or 0
    for _ in range(STEPS):
        step()
    return static, resident_peak() or 0, ""


def weigh_live(material: Material, step: Step) -> tuple[int, int, str]:
    """Return static and peak bytes of live tensors over the first steps."""
    static = material.static()
    with LiveBytes(*pools_of(step.session)) as live:
        live.track(*static)
        before = live.now
        for _ in range(STEPS):
            step()
    return before, live.peak, live.peak_at


def pools_of(session: Session | None) -> tuple[Callable[[], int], Callable[[int], bool]] | tuple[None, None]:
    """Return what a session's pools hold, and which addresses are theirs, as LiveBytes asks."""
    if session is None:
        return None, None
    arena, buffers = session.shelf.arena, session.shelf.buffers
    return (
        lambda: arena.nbytes_touched + buffers.nbytes_held,
        lambda address: arena.owns(address) or buffers.owns(address),
    )


if __name__ == "__main__":
    print(json.dumps(asdict(weigh(setup_of(sys.argv[3:]), sys.argv[1], sys.argv[2]))))
