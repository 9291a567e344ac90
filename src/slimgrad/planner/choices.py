"""Which tensors to keep, make again, code or send to disk so that the peak fits at the least time.

`choose` starts with everything kept as it is and, while the peak is too high (timeline.py), takes the change that frees
the most bytes per second that it costs, of the tensors that count in the peak.

Note [Sources]. A tensor is made again from another one that is kept bit for bit (recipes.py). `sources` names it where
it has a choice of its own: it is then kept as long as anything is made from it, and a change that codes it takes those
along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slimgrad.planner.timeline import AGAIN, CHOICES, KEEP, Choices, Cost, Site, Timeline

LEAST_SECONDS = 1e-9  # a change that costs nothing is still finite in the quotient
NOWHERE = (0.0, 0.0)  # in the peak
Costs = Mapping[Site, Cost]


def choose(
    timeline: Timeline,
    costs: Costs,
    limit: float,
    allowed: Iterable[str] = CHOICES,
    sources: Mapping[Site, Site] | None = None,
) -> dict[Site, str]:
    """Return a choice per site whose predicted peak is within the limit, or the most frugal one if none is."""
    options, sources = [choice for choice in CHOICES if choice in set(allowed)], sources or {}
    choices = dict.fromkeys(timeline.sites, options[0])
    while timeline.peak(choices, costs) > limit:
        counts = timeline.at_peak(choices, costs)
        changes = [
            (worth, site, change)
            for site in counts
            for better in options
            if better in costs[site].nbytes
            and (change := _change(site, better, choices, costs, sources)) is not None
            and (worth := _worth(change, choices, costs, counts)) > 0
        ]
        if not changes:
            return frugal(timeline, costs, options, sources)
        choices.update(max(changes, key=lambda found: found[:2])[2])
    return choices


def frugal(
    timeline: Timeline, costs: Costs, allowed: Iterable[str], sources: Mapping[Site, Site] | None = None
) -> dict[Site, str]:
    """Return the choice per site that takes the least memory; see Note [Sources]."""
    options = set(allowed)
    stored = {site: _least(costs[site], options - {AGAIN}) for site in timeline.sites}
    choices = {site: _least(costs[site], options) for site in timeline.sites}
    made_from: dict[Site, list[Site]] = {}
    for site, source in (sources or {}).items():
        if choices.get(site) == AGAIN and source in costs:
            made_from.setdefault(source, []).append(site)
    for source, made in made_from.items():
        with_source = costs[source].nbytes[KEEP] + sum(costs[site].nbytes[AGAIN] for site in made)
        together = [source, *made]
        if with_source < sum(costs[site].nbytes[stored[site]] for site in together):
            choices[source] = KEEP
        else:
            choices.update({site: stored[site] for site in together})
    return choices


def _least(cost: Cost, options: set[str]) -> str:
    return min(
        (choice for choice in CHOICES if choice in options and choice in cost.nbytes), key=cost.nbytes.__getitem__
    )


def _change(
    site: Site, better: str, choices: Choices, costs: Costs, sources: Mapping[Site, Site]
) -> dict[Site, str] | None:
    """Return what changes if this site does; None where it cannot."""
    if better == choices[site]:
        return None
    if better == AGAIN:
        source = sources.get(site)
        return {site: AGAIN} if source is None or choices.get(source, KEEP) == KEEP else None
    made = [one for one, source in sources.items() if source == site and choices.get(one) == AGAIN]
    return {site: better, **{one: better if better in costs[one].nbytes else KEEP for one in made}}


def _worth(change: Choices, choices: Choices, costs: Costs, counts: Mapping[Site, tuple[float, float]]) -> float:
    """Return the bytes that a change takes off the peak per second; 0 where it frees nothing."""

    def nbytes(site: Site, choice: str) -> float:
        return costs[site].nbytes[choice] * counts.get(site, NOWHERE)[choice != KEEP]

    freed = sum(nbytes(site, choices[site]) - nbytes(site, better) for site, better in change.items())
    smaller = sum(costs[site].nbytes[choices[site]] - costs[site].nbytes[better] for site, better in change.items())
    slower = sum(costs[site].seconds[better] - costs[site].seconds[choices[site]] for site, better in change.items())
    return freed / max(slower, LEAST_SECONDS) if smaller > 0 else 0.0  # ever smaller, so it ends
