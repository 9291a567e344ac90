"""Predicted against measured peak memory, for the models and arms of the lab.

    predict_arm(Setup("resnet50", batch=256), "slim") -> Prediction        seconds, at any batch
    compare(setup, "slim") -> Row                                          beside the measured live bytes of peak.py

Measured in a fresh process and by live bytes, so that a difference is the prediction's and not the allocator's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from slimgrad.lab import arms, models, peak
from slimgrad.lab.arms import HYBRID, LOW_PRECISION, Setup, checkpoint_segments
from slimgrad.lab.words import bound_of
from slimgrad.planner.fake_run import Prediction, Workload, predict
from slimgrad.planner.fit_batch import RESERVE

SETUPS = (  # small: what is compared is bytes, which do not get noisier with size
    Setup("resnet18", batch=8, size=112, threads=1),
    Setup("resnet50", batch=8, size=112, threads=1),
    Setup("vgg16", batch=2, threads=1),
    Setup("unet2d", batch=2, size=128, threads=1),
    Setup("gpt", batch=2, size=256, threads=1),
)
ARMS = (*arms.ARMS, *arms.POLICIES, HYBRID)


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison, in bytes."""

    setup: Setup
    arm: str
    static: int
    predicted: int
    measured: int
    seconds: float

    @property
    def error(self) -> float:
        """Predicted over measured peak, minus one."""
        return self.predicted / self.measured - 1

    @property
    def error_beyond_static(self) -> float:
        """The same without what is there before and after, which any prediction gets right."""
        return (self.predicted - self.static) / (self.measured - self.static) - 1


def workload_of(setup: Setup) -> Workload:
    """Return what the setup trains, as the planner takes it."""
    return Workload(
        lambda: models.build(setup.model),
        lambda batch: models.example(setup.model, batch, setup.size),
        lambda: models.criterion(setup.model),
        autocast=LOW_PRECISION.get(setup.autocast),
    )


def arm_options(setup: Setup, arm: str) -> dict[str, Any]:
    """Return what an arm of the lab is for the planner."""
    if arm == "checkpoint":
        return {"prepare": checkpoint_segments}
    policy = arms.policy_of(arm)
    return {} if policy is None else {"policy": policy, "bound": bound_of(setup.bound)}


def predict_arm(setup: Setup, arm: str) -> Prediction:
    """Return the predicted memory of an arm, without running it."""
    setup = setup.filled()
    return predict(workload_of(setup), setup.batch, **arm_options(setup, arm))


def compare(setup: Setup, arm: str) -> Row:
    """Return predicted and measured live peak of one arm."""
    setup = setup.filled()
    if arm == HYBRID:
        return _compare_hybrid(setup)
    prediction = predict_arm(setup, arm)
    measured = peak.measure_one(setup, arm, "live")
    return Row(setup, arm, measured.static, prediction.peak, measured.peak, prediction.seconds)


def _compare_hybrid(setup: Setup) -> Row:
    """Return what the planner of a session predicted, under a budget half-way between everything coded and plain.

    Where parameters are most of the memory, that is less than everything coded with the reserve: then a little more.
    """
    start = time.perf_counter()
    plain, coded = (predict_arm(setup, arm).peak for arm in ("plain", "slim"))
    budget = max((plain + coded) // 2, int(1.02 * coded / (1 - RESERVE)))
    seconds = time.perf_counter() - start
    measured = peak.measure_one(setup, f"{HYBRID}{budget}", "live")
    return Row(setup, HYBRID.rstrip(":"), measured.static, measured.planned, measured.peak, seconds)
