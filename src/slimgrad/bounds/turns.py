"""Whose errors Noise measures in a step, and when each site has its next turn.

    turns.request(step, sites, every)                    what to measure in this step
    turns.give(sites, known, reading, every, trifle)     after a reading: the next turn of each, in place
    turns.hurry(sites, keys, step, every)                these are worth a measurement before the next round

Note [When]. Rounds begin at the first steps and then every so often; within a round each site that is due has its turn.
Networks change fast at first, so that each has one in every round; soon, one that was found as expected sits out the
next. Between rounds, four times as often, the smallest sites are looked at, which costs next to nothing: they belong to
the last layers, whose errors grow the fastest while a task is learnt (fourfold in 50 steps, the input of a classifier).
So are queries and keys, which stand behind an exponential: in a GPT what they added grew thirtyfold in 40 steps, when
its attention began to matter. They are large, so finer codes stand in for the originals.

Note [Together]. Where errors travel, all that are followed in a step go together, and what they do is shared out as it
was expected of each. So sites of one role go together, whose errors are alike, and few the first time, when nothing is
expected yet. Errors that stay in their layer are told apart and go along with any. Beside its code each has a second,
finer one in that step (finer.py), and these are at most a sixteenth of all values' bytes, an eighth at first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slimgrad.bounds.base import FIRST_STEPS, Reading, Request, Site, State, is_due, site_key, site_of
from slimgrad.bounds.rates import EXACT_BITS, FINEST_STEP
from slimgrad.bounds.sensitivity import Sites, noise_of

QUOTA, FIRST_QUOTA = 1 / 16, 1 / 8  # of all values' bytes: what is kept beside codes in a step; until all had a turn
FINER_BITS = 3.0  # per value: what a finer code takes beyond the code itself
FEW = 6  # sites whose errors are followed together the first time
LOOKED_AT = 1 / 64  # of all values: the smallest sites, which are looked at between rounds
PARTS_OF_A_ROUND = 4
SUDDEN = frozenset({"attention query, key"})  # see Note [When]
ABSENT = 5  # steps, up to two more, until a site that did not run in its turn has another
SETTLES = 20  # steps: from here on, a site that is found as expected sits out the next round
SURPRISE = 1.5  # x what was known of a site: from here on, its next turn comes sooner


def request(step: int, sites: Sites, every: int) -> Request:
    """Return what is to be measured in a step."""
    due = _most_noise_first([key for key, entry in sites.items() if entry["rel"] and entry["due"] <= step], sites)
    if due:
        far = _of_one_role([key for key in due if _is_to_follow(sites[key])], sites)
        new = [key for key in far if not sites[key]["far"]["n"]]
        together = new[:FEW] or far + [key for key in due if not sites[key]["travels"]]
        if together:
            return Request(travels=_sites(_within_quota(together, sites)))
        return Request(errors=_sites(_within_quota(due, sites, is_finer=False)))
    if not any(entry["rel"] for entry in sites.values()):  # exact ones are not measured, but slowly forgotten
        return Request(errors=_sites(sites)) if is_due(step, every) else Request()
    if step % _between(every):
        return Request()
    small = smallest(sites, LOOKED_AT)
    sudden = [key for key, entry in sites.items() if entry["role"] in SUDDEN and key not in small and entry["rel"]]
    looks = _within_quota(_most_noise_first(sudden, sites), sites)
    return Request(errors=_sites(key for key in small if sites[key]["rel"]), looks=_sites(looks))


def give(sites: Sites, known: Sites, reading: Reading, every: int, trifle: float) -> None:
    """Set when each site has its next turn, and whether its bound may be loosened, in place; see Note [When].

    Growth below `trifle`, of the whole gradient's energy, is no surprise.
    """
    seen = {site_key(one.site) for one in reading.sites}
    measured = {site_key(one.site) for one in reading.sites if one.rms or one.density < 1.0}
    for key, entry in sites.items():
        if key in measured:
            usual = SURPRISE * noise_of(known[key]) if key in known else math.inf
            is_surprise = noise_of(entry) > max(usual, trifle / entry["seen"] ** 2)
            entry["fresh"] = entry["fresh"] and not is_surprise
            if is_surprise or entry["due"] <= reading.step:
                sits_out = reading.step >= SETTLES and not is_surprise
                following = _next_round(reading.step, every)
                entry["due"] = _next_round(following, every) if sits_out else following
        elif key not in seen and entry["due"] <= reading.step:
            entry["due"] = (
                reading.step + ABSENT + reading.step % 3
            )  # it did not run: others first. Not in phase with GANs


def hurry(sites: Sites, keys: Iterable[str], step: int, every: int) -> None:
    """Let sites have their next turn before the next round, all at the same step, in place."""
    soon = (step // _between(every) + 1) * _between(every)
    for key in keys:
        sites[key]["due"] = min(sites[key]["due"], soon)


def smallest(sites: Sites, share: float) -> set[str]:
    """Return the smallest sites, up to this share of all values together."""
    room = share * sum(entry["numel"] for entry in sites.values())
    small: set[str] = set()
    for key in sorted(sites, key=lambda key: (sites[key]["numel"], key)):
        room -= sites[key]["numel"]
        if room < 0:
            break
        small.add(key)
    return small


def _between(every: int) -> int:
    return max(1, every // PARTS_OF_A_ROUND)


def _next_round(step: int, every: int) -> int:
    """Return the first step of a round to come; at the very first, one that is twice as far on."""
    return next((first for first in FIRST_STEPS if first >= 2 * step), (step // every + 1) * every)


def _most_noise_first(keys: Iterable[str], sites: Sites) -> list[str]:
    """Return the keys ordered by the step from which on they are due; of one round, those that add the most first."""
    return sorted(keys, key=lambda key: (sites[key]["due"], -noise_of(sites[key]) * sites[key]["rel"] ** 2, key))


def _is_to_follow(entry: State) -> bool:
    """Return whether the site's error is to be followed; no more where its step is the finest and it does no harm."""
    is_finest = entry["far"]["n"] > 0 and 2.0 * entry["rel"] * entry["unit"] <= FINEST_STEP
    return entry["travels"] and not is_finest


def _of_one_role(keys: list[str], sites: Sites) -> list[str]:
    """Return those of the role of the first; see Note [Together]."""
    return [key for key in keys if sites[key]["role"] == sites[keys[0]]["role"]]


def _within_quota(keys: list[str], sites: Sites, is_finer: bool = True) -> list[str]:
    """Return the first of the keys, then as many others as fit, by the bytes of finer codes or of originals."""
    is_first = not all(entry["own"]["n"] for entry in sites.values() if entry["rel"])
    room = (FIRST_QUOTA if is_first else QUOTA) * sum(entry["numel"] for entry in sites.values())
    chosen: list[str] = []
    for key in keys:
        size = sites[key]["numel"] * ((sites[key]["bits"] + FINER_BITS) / EXACT_BITS if is_finer else 1.0)
        if not chosen or size <= room:
            chosen.append(key)
            room -= size
    return chosen


def _sites(keys: Iterable[str]) -> frozenset[Site]:
    return frozenset(site_of(key) for key in keys)
