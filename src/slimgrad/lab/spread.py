"""What few seeds say: means, and the 95 % interval of a difference between two arms that share their seeds.

The same seed gives both arms the same first weights and the same batches, so differences are taken seed by seed; their
mean has Student's distribution if they are normal. With one seed there is a difference and no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

T_975 = (  # two-sided 95 %, by degrees of freedom from 1 on
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
NORMAL_975, BEYOND = 1.960, 2.4  # beyond the table, 1.960 + 2.4 / degrees of freedom: right to 0.002


class Spread(NamedTuple):
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float  # 0.0 of one
    n: int


class Difference(NamedTuple):
    """The mean difference and its interval; `low` and `high` are None where one pair is all there is."""

    mean: float
    low: float | None
    high: float | None
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Return mean and deviation."""
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, len(values))


def difference(arm: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """Return arm - base over the seeds that both have; None where they share none."""
    pairs = [arm[seed] - base[seed] for seed in sorted(arm.keys() & base.keys())]
    if not pairs:
        return None
    mean, n = statistics.fmean(pairs), len(pairs)
    if n == 1:
        return Difference(mean, None, None, 1)
    t = T_975[n - 2] if n - 2 < len(T_975) else NORMAL_975 + BEYOND / (n - 1)
    half = t * statistics.stdev(pairs) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)
