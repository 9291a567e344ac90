"""Which tensors to keep, code or send to disk so that the peak fits at the least time.

A FakeTensor run with everything coded says, operator by operator, what is live and which coded tensors are among it
(Moments). From that the peak of any other choice follows by arithmetic: at each operator, a tensor counts with what it
takes under its choice. `choose` starts with everything kept as it is and, while the peak is too high, takes the change
that frees the most bytes at the peak per second that it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slimgrad.planner.fake_run import Moment
from slimgrad.planner.fake_shelf import Item

KEEP, CODE, DISK = CHOICES = ("keep", "code", "disk")
Site = tuple[str, int]
LEAST_SECONDS = 1e-9  # a change that costs nothing is still finite in the quotient


@dataclass(frozen=True, slots=True)
class Cost:
    """What a tensor takes under each choice: bytes of memory, and seconds per step."""

    nbytes: tuple[int, int, int]
    seconds: tuple[float, float, float]


class Timeline:
    """The peak as a function of the choices."""

    def __init__(self, items: Sequence[Item], moments: Sequence[Moment], static: int) -> None:
        self.sites: list[Site] = list(dict.fromkeys((item.path, item.number) for item in items))
        place = {site: number for number, site in enumerate(self.sites)}
        self._static = static
        self._live = np.array([moment.live for moment in moments], dtype=float)
        self._alive = np.zeros((len(moments), len(self.sites)))  # operators x sites
        coded = np.zeros(len(moments))
        for item in items:
            self._alive[item.born : item.died, place[item.path, item.number]] = 1.0
            coded[item.born : item.died] += item.stored
        self._buffers = np.maximum(np.array([moment.pooled for moment in moments]) - coded, 0.0)

    def after(self, kept: np.ndarray, coded: np.ndarray) -> np.ndarray:
        """Return the live bytes after each operator, by the bytes of each site that lie outside and in the pool.

        The pool does not shrink within a step, so its highest mark so far counts.
        """
        pool = np.maximum.accumulate(self._alive @ coded + self._buffers)
        return self._live + self._alive @ kept + pool

    def peak(self, choices: Mapping[Site, str], costs: Mapping[Site, Cost]) -> int:
        """Return the predicted peak in bytes, static memory included."""
        return int(self.after(*self._sizes(choices, costs)).max())

    def alive_at_peak(self, choices: Mapping[Site, str], costs: Mapping[Site, Cost]) -> list[Site]:
        """Return the sites whose tensors count in the peak."""
        moment = int(self.after(*self._sizes(choices, costs)).argmax())
        row = self._alive[: moment + 1].max(axis=0)  # what was coded earlier has raised the pool
        return [site for site, is_alive in zip(self.sites, row, strict=True) if is_alive]

    def _sizes(self, choices: Mapping[Site, str], costs: Mapping[Site, Cost]) -> tuple[np.ndarray, np.ndarray]:
        kept = [costs[s].nbytes[0] if choices.get(s, CODE) == KEEP else 0 for s in self.sites]
        coded = [
            0 if choices.get(s, CODE) == KEEP else costs[s].nbytes[CHOICES.index(choices.get(s, CODE))]
            for s in self.sites
        ]
        return np.array(kept, dtype=float), np.array(coded, dtype=float)


def choose(
    timeline: Timeline, costs: Mapping[Site, Cost], limit: float, allowed: Iterable[str] = CHOICES
) -> dict[Site, str]:
    """Return a choice per site whose predicted peak is within the limit, or the most frugal one if none is."""
    options = [choice for choice in CHOICES if choice in set(allowed)]
    choices = dict.fromkeys(timeline.sites, options[0])
    while timeline.peak(choices, costs) > limit:
        changes = [
            (_worth(costs[site], choices[site], better), site, better)
            for site in timeline.alive_at_peak(choices, costs)
            for better in options[options.index(choices[site]) + 1 :]
            if costs[site].nbytes[CHOICES.index(better)] < costs[site].nbytes[CHOICES.index(choices[site])]
        ]
        if not changes:
            return {site: min(options, key=lambda c: costs[site].nbytes[CHOICES.index(c)]) for site in timeline.sites}
        _, site, better = max(changes)
        choices[site] = better
    return choices


def _worth(cost: Cost, now: str, better: str) -> float:
    a, b = CHOICES.index(now), CHOICES.index(better)
    return (cost.nbytes[a] - cost.nbytes[b]) / max(cost.seconds[b] - cost.seconds[a], LEAST_SECONDS)
