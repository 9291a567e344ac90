"""Where a budget of noise buys the most bytes: the code's rate curves, and the cheapest steps within a budget.

A site that is rounded to a step of d times its RMS costs `numel * bits(d)` and adds `sensitivity * d^2` to the noise.
The curves are those of the nested code on normal data; a run scales them by the bytes that it sees.

Note [Limits]. Beside the one budget there may be limits, each a weighted sum of squared steps of its own. Where one is
exceeded, whoever adds to it is made finer in the same proportion, and what that saves of the budget is spent again, a
few times over. That is not the cheapest way to keep limits, but steps only ever become finer, so it ends, and at the
end all of them hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FINEST, COARSEST = -64, 8  # steps of 2 ** (k / 8) RMS: from 1/256 to 2, beyond which coarser steps buy nothing
STEPS = 2.0 ** (np.arange(FINEST, COARSEST + 1) / 8)
FINEST_STEP = float(STEPS[0])
MEASURED_AT = 2.0 ** (np.array((-16, -12, *range(-8, 3))) / 2)
CURVES = {  # bits per value at those steps
    "sparse": (5.586, 4.585, 3.574, 3.346, 3.074, 2.846, 2.574, 2.346, 2.078, 1.850, 1.691, 1.588, 1.515),
    "signed": (11.14, 9.139, 7.141, 6.684, 6.141, 5.684, 5.141, 4.684, 4.143, 3.687, 3.373, 3.167, 3.032),
    "centred": (11.14, 9.091, 6.973, 6.471, 5.850, 5.321, 4.658, 4.104, 3.398, 2.842, 2.393, 2.004, 1.646),
}
BITS = {curve: np.interp(np.log2(STEPS), np.log2(MEASURED_AT), measured) for curve, measured in CURVES.items()}
EXACT_BITS = 32.0
N_BISECTIONS = 40
N_ROUNDS = 3  # of spending what limits have saved
N_CLAMPS = 100  # at most: each makes some step at least one eighth of an octave finer
MINOR = 0.3  # of an equal share: whoever adds less than this to a limit is left alone


@dataclass(frozen=True, slots=True)
class Item:
    """One site: what it costs, what it adds, and how coarse it may become."""

    numel: int
    curve: str
    factor: float  # bits that were stored / bits of the curve at that step
    sensitivity: float  # noise at d = 1
    coarsest: float  # largest step allowed, in RMS


def bits(curve: str, step: float) -> float:
    """Return bits per value at a step, between the measured ones by straight lines in log2."""
    return float(np.interp(np.log2(step), np.log2(MEASURED_AT), CURVES[curve]))


def cheapest(items: Sequence[Item], budget: float, limits: np.ndarray | None = None) -> list[float]:
    """Return the step of each item, 0.0 for exact, with few bits in all, whose noise is within the budget.

    `limits`, one row each and one column per item: no row's sum of entry x step^2 exceeds 1; see Note [Limits].
    """
    if not items:
        return []
    coarsest = np.array([item.coarsest for item in items])
    if limits is None or not limits.size:
        return _within_budget(items, coarsest, budget).tolist()
    steps = coarsest
    for _ in range(N_ROUNDS):
        before = _within_budget(items, coarsest, budget)
        steps = _within_limits(before, limits)
        if np.array_equal(steps, before):
            break
        coarsest = np.where(steps < before, steps, coarsest)
    return steps.tolist()


def _within_budget(items: Sequence[Item], coarsest: np.ndarray, budget: float) -> np.ndarray:
    """Return the cheapest steps.

    A multiplier prices noise in bits; each item then decides for itself, and bisection finds the lowest price at which
    the budget holds. Nothing has to be convex. At an infinite price everything is exact, so there is always an answer.
    """
    numel = np.array([item.numel for item in items], dtype=float)[:, None]
    factor = np.array([item.factor for item in items])[:, None]
    cost = numel * factor * np.stack([BITS[item.curve] for item in items])
    noise = np.array([item.sensitivity for item in items])[:, None] * STEPS**2
    cost = np.where(STEPS[None, :] <= coarsest[:, None] * (1 + 1e-9), cost, np.inf)
    cost = np.concatenate([numel * EXACT_BITS, cost], axis=1)  # first choice: exact
    noise = np.concatenate([np.zeros_like(numel), noise], axis=1)
    steps, rows = np.concatenate([[0.0], STEPS]), np.arange(len(items))

    def choose(price: float) -> np.ndarray:
        return np.argmin(cost + price * noise, axis=1)

    low, high = -30.0, 120.0  # logarithms of the price
    if noise[rows, choose(2.0**low)].sum() <= budget:
        return steps[choose(2.0**low)]
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        if noise[rows, choose(2.0**middle)].sum() <= budget:
            high = middle
        else:
            low = middle
    return steps[choose(2.0**high)]


def _within_limits(steps: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return steps that keep all limits, finer where they have to be."""
    for _ in range(N_CLAMPS):
        added = limits * steps**2
        sums = added.sum(axis=1)
        if (sums <= 1.0).all():
            return steps
        counts = np.maximum(1, (added > 0).sum(axis=1))
        adds = added > (MINOR * sums / counts)[:, None]
        excess = np.where(adds & (sums > 1.0)[:, None], sums[:, None], 0.0).max(axis=0)
        wanted = np.where(excess > 0, steps * (1 - 1e-9) / np.sqrt(np.maximum(1.0, excess)), steps)
        steps = np.where(excess > 0, _next_finer(wanted), steps)
    return np.where((limits > 0).any(axis=0), 0.0, steps)


def _next_finer(steps: np.ndarray) -> np.ndarray:
    """Return the steps of the table at or below these; exact below the finest."""
    index = np.searchsorted(STEPS, steps, side="right") - 1
    return np.where(index >= 0, STEPS[np.maximum(index, 0)], 0.0)
