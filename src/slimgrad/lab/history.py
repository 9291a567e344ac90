"""The course of a run: about a hundred points, whatever its length, so that a result is a small file.

train    per point, means of the steps since the last: step, loss, accuracy, seconds, bytes saved plain and slim
test     step, loss, accuracy
noise    step, measured and expected share of the gradient's energy, ratio over all saved activations, mean bound
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from slimgrad.ledger import Sums

N_POINTS = 100


class History:
    """Points of a run of so many steps."""

    def __init__(self, steps: int) -> None:
        self._every = max(1, steps // N_POINTS)
        self.train: list[dict[str, Any]] = []
        self.test: list[dict[str, Any]] = []
        self.noise: list[dict[str, Any]] = []
        self._steps: list[list[float]] = []  # loss, accuracy, seconds of those since the last point
        self._saved_before = (0, 0)  # what the ledger of this process had counted at the last point

    def add_step(self, loss: float, accuracy: float, seconds: float) -> None:
        self._steps.append([loss, accuracy, seconds])

    def is_point_due(self, before: int, step: int) -> bool:
        """Return whether a point lies between two steps, the later one included."""
        return before // self._every < step // self._every

    def add_point(self, step: int, sums: Sums | None) -> None:
        """Make the steps since the last point into one; `sums` are those of the ledger since the process began."""
        losses, accuracies, seconds = zip(*self._steps, strict=True)
        point = {"step": step, "loss": statistics.fmean(losses), "accuracy": statistics.fmean(accuracies)}
        point["seconds"] = statistics.fmean(seconds)
        if sums is not None:
            now = (sums.saved_in, sums.saved_out)
            point |= {"saved_in": now[0] - self._saved_before[0], "saved_out": now[1] - self._saved_before[1]}
            self._saved_before = now
        self.train.append(point)
        self._steps = []

    def add_test(self, step: int, loss: float, accuracy: float) -> None:
        self.test = [one for one in self.test if one["step"] != step]
        self.test.append({"step": step, "loss": loss, "accuracy": accuracy})

    def add_noise(self, step: int, measured: float, expected: float | None, ratio: float, rel: float | None) -> None:
        self.noise.append({"step": step, "measured": measured, "expected": expected, "ratio": ratio, "rel": rel})

    def was_tested(self, step: int) -> bool:
        return any(one["step"] == step for one in self.test)

    def was_audited(self, step: int) -> bool:
        return any(one["step"] == step for one in self.noise)

    @property
    def loss(self) -> float | None:
        """The mean loss of the steps since the last point, or of the last point."""
        if self._steps:
            return statistics.fmean(step[0] for step in self._steps)
        return self.train[-1]["loss"] if self.train else None

    @property
    def accuracy(self) -> float | None:
        if self._steps:
            return statistics.fmean(step[1] for step in self._steps)
        return self.train[-1]["accuracy"] if self.train else None

    @property
    def seconds(self) -> list[float]:
        """Mean seconds per step, by point."""
        return [point["seconds"] for point in self.train]

    @property
    def saved_ratio(self) -> float | None:
        """Original / stored bytes over all saved activations of the run."""
        saved_in = sum(point.get("saved_in", 0) for point in self.train)
        saved_out = sum(point.get("saved_out", 0) for point in self.train)
        return saved_in / saved_out if saved_out else None

    def to_dict(self) -> dict[str, Any]:
        return {"train": self.train, "test": self.test, "noise": self.noise}

    def state_dict(self) -> dict[str, Any]:
        return {**self.to_dict(), "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with a ledger that is new."""
        self.train, self.test, self.noise = (list(state[name]) for name in ("train", "test", "noise"))
        self._steps = list(state["steps"])
        self._saved_before = (0, 0)
