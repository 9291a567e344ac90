"""Where a budget of noise buys the most bytes: the code's rate curves, and the cheapest steps within a budget.

A site that is rounded to a step of d times its RMS costs `numel * bits(d)` and adds `sensitivity * d^2` to the noise.
The curves are those of the nested code on normal data; a run scales them by the bytes that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FINEST, COARSEST = -32, 8  # steps of 2 ** (k / 8) RMS: from 1/16 to 2, beyond which coarser steps buy nothing
STEPS = 2.0 ** (np.arange(FINEST, COARSEST + 1) / 8)
MEASURED_AT = 2.0 ** (np.arange(-8, 3) / 2)
CURVES = {  # bits per value at those steps
    "sparse": (3.574, 3.346, 3.074, 2.846, 2.574, 2.346, 2.078, 1.850, 1.691, 1.588, 1.515),
    "signed": (7.141, 6.684, 6.141, 5.684, 5.141, 4.684, 4.143, 3.687, 3.373, 3.167, 3.032),
    "centred": (6.973, 6.471, 5.850, 5.321, 4.658, 4.104, 3.398, 2.842, 2.393, 2.004, 1.646),
}
EXACT_BITS = 32.0
N_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Item:
    """One site: what it costs, what it adds, and how coarse it may become."""

    numel: int
    curve: str
    factor: float  # bits that were stored / bits of the curve at that step
    sensitivity: float  # noise at d = 1
    coarsest: float  # largest step allowed, in RMS


def bits(curve: str, step: float | np.ndarray) -> np.ndarray:
    """Return bits per value at a step, between and beyond the measured ones by straight lines in log2."""
    return np.interp(np.log2(step), np.log2(MEASURED_AT), CURVES[curve])


def cheapest(items: Sequence[Item], budget: float) -> list[float]:
    """Return the step of each item, 0.0 for exact, with the fewest bits in all whose noise is within the budget.

    A multiplier prices noise in bits; each item then decides for itself, and bisection finds the lowest price at which
    the budget holds. Nothing has to be convex. At an infinite price everything is exact, so there is always an answer.
    """
    if not items:
        return []
    numel = np.array([item.numel for item in items], dtype=float)[:, None]
    factor = np.array([item.factor for item in items])[:, None]
    cost = numel * factor * np.stack([bits(item.curve, STEPS) for item in items])
    noise = np.array([item.sensitivity for item in items])[:, None] * STEPS**2
    allowed = STEPS[None, :] <= np.array([item.coarsest for item in items])[:, None] * (1 + 1e-9)
    cost = np.where(allowed, cost, np.inf)
    cost = np.concatenate([numel * EXACT_BITS, cost], axis=1)  # first choice: exact
    noise = np.concatenate([np.zeros_like(numel), noise], axis=1)
    steps = np.concatenate([[0.0], STEPS])

    def choose(price: float) -> np.ndarray:
        return np.argmin(cost + price * noise, axis=1)

    rows = np.arange(len(items))
    low, high = -30.0, 120.0  # logarithms of the price
    if noise[rows, choose(2.0**low)].sum() <= budget:
        return steps[choose(2.0**low)].tolist()
    for _ in range(N_BISECTIONS):
        middle = (low + high) / 2
        if noise[rows, choose(2.0**middle)].sum() <= budget:
            high = middle
        else:
            low = middle
    return steps[choose(2.0**high)].tolist()
