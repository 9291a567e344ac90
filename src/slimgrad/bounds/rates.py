"""Where a budget of noise buys the most bytes: the code's rate curves, and the cheapest steps within a budget.

A site that is rounded to a step of d times its RMS costs `numel * bits(d)` and adds `sensitivity * d^2` to the noise.
The curves are those of the nested code on normal data; a run scales them by the bytes that it sees.

Note [Prices]. The budget, and each limit beside it (a weighted sum of squared steps of its own), has a price in bits.
At given prices every site decides for itself: it takes the step at which a little more noise saves as many bits as it
costs. So at the optimum all sites that share the same limits save the same number of bits per noise. Prices rise where
a limit is exceeded and fall where there is room, a few dozen times over; what is left of an excess then, a per cent or
so, is taken from whoever adds to it, in the same proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

FINEST_STEP, COARSEST_STEP = 2.0**-8, 2.0  # in RMS; beyond, coarser steps buy nothing
MEASURED_AT = 2.0 ** (np.array((-16, -12, *range(-8, 3))) / 2)
CURVES = {  # bits per value at those steps
    "sparse": (5.574, 4.574, 3.574, 3.332, 3.074, 2.833, 2.574, 2.333, 2.079, 1.839, 1.636, 1.417, 1.222),
    "signed": (10.39, 8.394, 6.393, 5.906, 5.393, 4.906, 4.393, 3.906, 3.396, 2.909, 2.512, 2.067, 1.688),
    "centred": (10.40, 8.374, 6.342, 5.856, 5.327, 4.851, 4.317, 3.860, 3.314, 2.814, 2.252, 1.742, 1.417),
}
BASE = {"sparse": 0.5, "signed": 0.0, "centred": 0.0}  # of those, what where the zeros are takes, roughly
EXACT_BITS = 32.0
N_PRICES, SETTLED = 60, 2e-3  # rounds at most; the relative change of all steps from which on there are no more ...
MET = 0.03  # ... if besides no limit is passed by more, and one is met as nearly or no step may be coarser
PRICE_POWER = 0.7  # of a limit's excess: noise goes with price ** -0.7 to -1, so this neither creeps nor swings
LOWEST_PRICE = 1e-9  # bits for all that a limit allows: nothing
N_CLAMPS = 100  # at most
MINOR = 0.3  # of an equal share: whoever adds less than this to a limit is left alone


@dataclass(frozen=True, slots=True)
class Item:
    """One site: what it costs, what it adds, and how coarse it may become."""

    numel: int
    curve: str
    factor: float  # bits that were stored / bits of the curve at that step, both above the curve's base
    sensitivity: float  # noise at d = 1
    coarsest: float  # largest step allowed, in RMS


def bits(curve: str, step: float) -> float:
    """Return bits per value at a step, between the measured ones by straight lines in log2."""
    return float(np.interp(np.log2(step), np.log2(MEASURED_AT), CURVES[curve]))


def factor_of(curve: str, step: float, stored: float) -> float:
    """Return how a curve has to be scaled to give the bits that were stored per value at a step."""
    base = BASE[curve]
    return max(0.0, stored - base) / (bits(curve, step) - base)


def cheapest(items: Sequence[Item], budget: float, limits: np.ndarray | None = None) -> list[float]:
    """Return the step of each item, 0.0 for exact, with few bits in all, whose noise is within the budget.

    `limits`, one row each and one column per item: no row's sum of entry x step^2 exceeds 1; see Note [Prices].
    """
    if not items:
        return []
    if budget <= 0:
        return [0.0 if item.sensitivity > 0 else item.coarsest for item in items]
    whole = np.array([[item.sensitivity / budget for item in items]])
    weights = whole if limits is None or not limits.size else np.concatenate([whole, limits])
    market = _Market(items)
    prices = np.full(len(weights), market.value.sum() * 1e-3)
    steps = market.steps(prices @ weights)
    for _ in range(N_PRICES):
        before, loads = steps, weights @ steps**2
        prices = np.maximum(LOWEST_PRICE, prices * np.clip(loads, 0.01, 100.0) ** PRICE_POWER)
        steps = market.steps(prices @ weights)
        is_met = abs(loads.max() - 1.0) <= MET or (loads.max() < 1.0 and (steps == market.coarsest).all())
        if is_met and (np.abs(steps - before) <= SETTLED * before).all():
            break
    return _within_limits(steps, weights).tolist()


class _Market:
    """The sites, each of which takes the step that is the cheapest for it at a price of noise."""

    def __init__(self, items: Sequence[Item]) -> None:
        numel = np.array([item.numel for item in items], dtype=float)
        factor = np.array([item.factor for item in items])
        base = np.array([BASE[item.curve] for item in items])
        finest = np.array([CURVES[item.curve][0] for item in items])
        self.value = numel * np.maximum(factor, 1e-3)  # of one bit of the curve
        self.coarsest = np.array([item.coarsest for item in items])
        self._exact_from = (numel * (EXACT_BITS - base) - self.value * (finest - base)) / FINEST_STEP**2
        self._log_value = np.log2(self.value)
        curves = np.array([item.curve for item in items])
        self._of_curve = [(RESPONSES[curve], np.flatnonzero(curves == curve)) for curve in CURVES]

    def steps(self, price: np.ndarray) -> np.ndarray:
        """Return the steps at these prices, one per site, of noise at a step of 1 RMS."""
        wanted = np.log2(np.maximum(price, 1e-300)) - self._log_value
        for response, ours in self._of_curve:
            wanted[ours] = np.interp(wanted[ours], *response)
        wanted = np.exp2(wanted)
        return np.where(price > self._exact_from, 0.0, np.minimum(wanted, self.coarsest))


def _response(measured: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the cheapest step of one value by the price of noise, logarithms of both, prices ascending.

    A step is the cheapest where bits saved per noise, the slope of the curve's lower hull over d^2, passes the price.
    """
    noise, cost = np.square(MEASURED_AT), np.array(measured)
    hull = [0]
    for point in range(1, len(noise)):
        while len(hull) > 1 and _slope(noise, cost, hull[-2], point) <= _slope(noise, cost, hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    slopes = np.array([-_slope(noise, cost, one, other) for one, other in pairwise(hull)])  # falling
    middles = np.log2([MEASURED_AT[one] * MEASURED_AT[other] for one, other in pairwise(hull)]) / 2
    prices = np.concatenate([[np.log2(slopes[-1]) - 1.0], np.log2(slopes[::-1]), [np.log2(slopes[0]) + 1.0]])
    return prices, np.concatenate([[np.log2(COARSEST_STEP)], middles[::-1], [np.log2(FINEST_STEP)]])


def _slope(noise: np.ndarray, cost: np.ndarray, one: int, other: int) -> float:
    return float((cost[other] - cost[one]) / (noise[other] - noise[one]))


RESPONSES = {curve: _response(measured) for curve, measured in CURVES.items()}


def _within_limits(steps: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return steps that keep all limits, finer where they have to be, exact below the finest."""
    for _ in range(N_CLAMPS):
        added = limits * steps**2
        sums = added.sum(axis=1)
        if (sums <= 1.0).all():
            return steps
        counts = np.maximum(1, (added > 0).sum(axis=1))
        adds = added > (MINOR * sums / counts)[:, None]
        excess = np.where(adds & (sums > 1.0)[:, None], sums[:, None], 1.0).max(axis=0)
        steps = np.where(excess > 1.0, steps * (1 - 1e-3) / np.sqrt(excess), steps)
        steps = np.where(steps < FINEST_STEP * (1 - 1e-9), 0.0, steps)
    return np.where((limits > 0).any(axis=0), 0.0, steps)
