"""A batch that stays right while training changes: ratios drift, and with them what fits.

    keeper = BatchKeeper(slimgrad.fit_batch(step, "4GiB"))
    while training:
        keeper.run(step)          step(keeper.batch); measured, and repeated smaller if an allocation fails

What does not depend on the batch is known from the fit; each measured peak gives the bytes per example anew. A peak
over the limit shrinks the batch at once; it grows only when GAIN more would fit, so that it does not flutter.
"""

from __future__ import annotations

from collections.abc import Callable

from slimgrad.errors import ConfigError
from slimgrad.planner.fit_batch import FittedBatch, Line, Try, rounded
from slimgrad.planner.out_of_memory import give_back_memory, is_out_of_memory

GAIN = 1.25  # growth of the batch that is worth a change
MEASURE_EVERY = 10  # steps: measuring gives pooled memory back to the system, which costs time


class BatchKeeper:
    """Runs steps at the batch that fits, and moves it."""

    def __init__(self, fitted: FittedBatch, every: int = MEASURE_EVERY) -> None:
        if not isinstance(fitted, FittedBatch):
            raise ConfigError(f"expected what slimgrad.fit_batch returned, got {fitted!r}")
        self.batch = int(fitted)
        self.changes: list[Try] = []  # measurements after which the batch moved
        self._fitted, self._every, self._n_steps = fitted, every, 0
        self._fixed = 0.0 if fitted.line is None else fitted.line.fixed

    def run(self, step: Callable[[int], object]) -> int:
        """Run step(batch), smaller if it fails for want of memory; return the batch that ran."""
        while True:
            batch = self.batch
            try:
                self._run_once(step, batch)
            except Exception as error:
                if not is_out_of_memory(error) or batch <= self._fitted.floor:
                    raise
                give_back_memory(error)
            else:
                return batch
            self._move(max(batch // 2, self._fitted.floor), Try(batch, None, None, False))

    def _run_once(self, step: Callable[[int], object], batch: int) -> None:
        self._n_steps += 1
        if self._n_steps % self._every:
            step(batch)
        else:
            self.observe(batch, self._fitted.meter.peak_of(lambda: step(batch)))

    def observe(self, batch: int, peak: int) -> int:
        """Take a measured peak into account and return the batch for the next step."""
        limit = self._fitted.limit
        fixed = min(self._fixed, peak - 1)
        line = Line(fixed, max((peak - fixed) / batch, 1.0))
        wanted = line.largest(limit)
        if self._fitted.ceiling is not None:
            wanted = min(wanted, self._fitted.ceiling)
        wanted = max(rounded(wanted, self._fitted.powers_of_two), self._fitted.floor)
        if (peak > limit and wanted < batch) or wanted >= GAIN * batch:
            self._move(wanted, Try(batch, line.at(batch), peak, peak <= limit))
        return self.batch

    def _move(self, batch: int, why: Try) -> None:
        self.batch = batch
        self.changes.append(why)
