"""Memory over one training step: the bytes of all live tensors after every operator.

What was there before the step (parameters, gradients, optimiser state, the batch) is the floor; the curve is what
forward and backward add to it. Pools of a session count whole, as they do in `slimgrad bench steps`. It is a usual
step: those in which an adaptive bound measures take more, and the resident peak of the run has them in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from slimgrad.lab.peak import pools_of
from slimgrad.lab.run import Run
from slimgrad.report.memory import LiveBytes

N_SAMPLES = 160


class Recording(LiveBytes):
    """LiveBytes that remembers every value."""

    def __init__(self, *pools: Any) -> None:
        super().__init__(*pools)
        self.samples: list[int] = []

    def _note_peak(self, where: str) -> None:
        super()._note_peak(where)
        self.samples.append(self.now + self._pooled())


def timeline(run: Run) -> dict[str, Any]:
    """Return the memory of one more forward and backward of a run that has ended; the model is not trained by it."""
    x, y = (tensor[: run.recipe.part or None] for tensor in run.fitted_batches(run.done, run.n_grown))
    run.optimizer.zero_grad(set_to_none=False)
    state = [v for s in run.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    grads = [p.grad for p in run.model.parameters() if p.grad is not None]
    if run.session is not None:
        run.session.progress.begin_forward()  # the step before is over
        run.session.tuning.meter.is_on = False
    with Recording(*pools_of(run.session)) as live:
        live.track(*run.model.parameters(), *run.model.buffers(), *grads, *state, x, y)
        static = live.now
        loss = run.criterion(run.model(x), y)
        forward = len(live.samples)
        loss.backward()
    samples = [sample - static for sample in live.samples]
    return {
        "static": static,
        "peak": max(samples),
        "forward": forward / len(samples),  # share of the operators that belong to forward
        "samples": _thinned(samples, N_SAMPLES),
    }


def _thinned(samples: list[int], n: int) -> list[int]:
    """Return at most n values, each the largest of its share, so that the peak stays."""
    if len(samples) <= n:
        return samples
    edges = [round(i * len(samples) / n) for i in range(n + 1)]
    return [max(samples[a:b]) for a, b in pairwise(edges)]
