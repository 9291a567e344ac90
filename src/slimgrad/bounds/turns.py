"""Whose errors Noise measures in a step, and when each site has its next turn.

    turns.request(step, sites, every)                    what to measure in this step
    turns.give(sites, known, reading, every, trifle)     after a reading: the next turn of each, in place
    turns.hurry(sites, keys, step, every, young)         these are worth a measurement before the next round

Note [When]. Rounds begin at the first steps and then every so often. A site sits out every other one, unless what was
followed adds much more than it did, or the network would be far older by then. Between rounds some sites are looked at,
which costs little. The smallest: they belong to the last layers, whose errors grow the fastest while a task is learnt
(fourfold in 50 steps, the input of a classifier). The two that take the most of what some layer may suffer. And queries
and keys, which stand behind an exponential: in a GPT what they added grew thirtyfold in 40 steps, when its attention
began to matter. All but the smallest are large, so what is coded stands in for the originals. Looks come four times as
often as rounds where the network is new, and else twice; where there is attention, once between two rounds (without
those of old networks, a GPT spent a third too much from step 800 on). There the first rounds are at steps 10 and 50:
nothing is loosened before, since what errors do in the first steps, they do no more some steps later.

Note [Together]. Following errors costs another backward pass, however many they are. So all sites have their turn in
the same step, whoever is due: what several do together is shared out as it was expected of each. Of each, what its code
has left out is coded beside it in that step (finer.py), and this is at most a sixteenth of all values' bytes. The first
time, what each does to its own layer and to the next on its way is told apart, and for batch norms in one turn of four,
since most of what they do is done to the convolution right before them, each to its own. Later all is measured at once,
which costs half as much, and of what a layer suffers each keeps its proportion. For good it may not: a GPT whose
sites kept the proportions of their first turn stored a third more after 2000 steps. So kinds are followed each by
itself, in one step, when the network is six times as old as it was then, or 600 steps older. A kind is a role, but all
that stands behind an exponential is one: it may take only a part of any limit (noise.py). With kinds put together for
good, and told apart by what each did near by, a GPT stored a tenth more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from slimgrad.bounds.base import (
    ATTENTION,
    FIRST_STEPS,
    LOG_SOFTMAX,
    SUDDEN,
    Reach,
    Reading,
    Request,
    Site,
    State,
    is_due,
    site_key,
    site_of,
)
from slimgrad.bounds.rates import EXACT_BITS, FINEST_STEP
from slimgrad.bounds.sensitivity import ALL, Sites, noise_of

QUOTA = 1 / 16  # of all values' bytes: what is kept beside codes in a step
LEFT_OUT_BITS = 2.0  # per value, at most: what a code has left out, coded
LOOKED_AT = 1 / 64  # of all values: the smallest sites, which are looked at between rounds
PARTS_OF_A_ROUND = 4
ALIKE = "batch norm input"  # most of what these do is done to the convolution right before; see Note [Together] ...
APART_EVERY = 4  # ... so in the first of so many turns they are told apart
ALONE_AT, ALONE_AFTER = 6, 600  # x its age, and steps: so much older, a network has each kind measured alone again
ROUNDS_WITH_ATTENTION = (10, 50)  # the first; nothing is loosened before the second
N_EXPOSED = 2  # sites that take the most of what some layer may suffer
MOST_AGING, AT_FIRST = 2.5, 8  # x its age: the oldest that a network may be at the next round; and its age at first
ABSENT = 5  # steps, up to two more, until a site that did not run in its turn has another; or as many as it has not run
GROWING = 1.4  # x what was known of all that was followed, after learning: from here on, none sits out a round
SURPRISE = 1.5  # x what was known of a site: from here on, its bound is not loosened


def request(step: int, sites: Sites, every: int) -> Request:
    """Return what is to be measured in a step."""
    coded = [key for key, entry in sites.items() if entry["rel"]]
    due = _most_noise_first([key for key in coded if sites[key]["due"] <= step], sites)
    far = [key for key in due if _is_to_follow(sites[key])]
    if far:
        chosen = _within_quota(_most_noise_first(coded, sites), sites)
        if not any(_is_to_be_told_apart(sites[key]) for key in coded):
            return Request(at_once=tuple(map(_sites, _sets(far[0], chosen, sites, step))), is_rough=True)
        near = [key for key in chosen if sites[key]["travels"] and not _is_known_batch_norm(sites[key])]
        return Request(travels=_sites(chosen), looks=_sites(near), is_rough=True)
    if due:
        return Request(errors=_sites(_within_quota(due, sites, is_finer=False)))
    if not coded:  # exact ones are not measured, but slowly forgotten
        return Request(errors=_sites(sites)) if is_due(step, every) else Request()
    if not is_look(step, sites, every):
        return Request()
    small = smallest(sites, LOOKED_AT)
    large = [key for key in coded if key not in small]
    sudden = [key for key in large if sites[key]["role"] in SUDDEN | LOG_SOFTMAX]
    exposures = {key: exposure for key in large if (exposure := _exposure(sites[key]))}
    exposed = sorted(exposures, key=lambda key: -exposures[key])[:N_EXPOSED]
    looks = _within_quota(list(dict.fromkeys([*exposed, *_most_noise_first(sudden, sites)])), sites)
    errors = _sites(key for key in small if sites[key]["rel"])
    return Request(errors=errors, looks=_sites(looks), is_look=True, is_rough=True)


def has_attention(sites: Sites) -> bool:
    """Return whether there are queries and keys: what they add may grow thirtyfold within some forty steps."""
    return any(entry["role"] in SUDDEN for entry in sites.values())


def is_look(step: int, sites: Sites, every: int) -> bool:
    """Return whether this is a step between rounds, in which some sites are looked at; see Note [When]."""
    apart = _between(every) if step <= every else 2 * _between(every)
    is_time = step % apart == 0
    if has_attention(sites):  # half way between rounds
        is_time = is_time and step > every and step // apart % 2 == 1
    return is_time and any(entry["rel"] for entry in sites.values()) and not some_are_due(sites, step)


def some_are_due(sites: Sites, step: int) -> bool:
    """Return whether there are sites whose turn has come."""
    return any(entry["rel"] and entry["due"] <= step for entry in sites.values())


def give(sites: Sites, known: Sites, reading: Reading, every: int, trifle: float) -> None:
    """Set when each site has its next turn, and whether its bound may be loosened, in place; see Note [When].

    Growth below `trifle`, of the whole gradient's energy, is no surprise.
    """
    seen = {site_key(one.site) for one in reading.sites}
    measured = {site_key(one.site) for one in reading.sites if one.rms or one.density < 1.0}
    at_once, far = _sites_in(reading, "all"), _sites_in(reading, "far")
    followed = far | {key for key in at_once if sites[key]["travels"]}
    went_along = _sites_in(reading, "own") | far | at_once if followed else set()
    for key in _told_apart(reading, sites):
        sites[key]["apart"] = reading.step
    is_growing = _growth(followed & known.keys(), known, sites) > GROWING
    firsts = ROUNDS_WITH_ATTENTION if has_attention(sites) else FIRST_STEPS
    following = _next_round(reading.step, every, firsts)
    next_but_one = _next_round(following, every, firsts)
    sits_out_none = is_growing or next_but_one > MOST_AGING * max(reading.step, AT_FIRST)
    for key, entry in sites.items():
        if key in measured:
            usual = SURPRISE * noise_of(known[key]) if key in known else math.inf
            is_surprise = noise_of(entry) > max(usual, trifle / entry["seen"] ** 2)
            entry["fresh"] = entry["fresh"] and not is_surprise
            if key in went_along or entry["due"] <= reading.step:
                entry["due"] = following if sits_out_none else next_but_one
            elif is_surprise and entry["travels"]:
                entry["due"] = min(entry["due"], following)
        elif key not in seen and entry["due"] <= reading.step:  # it did not run: others first. Not in phase with GANs
            entry["due"] = reading.step + max(ABSENT + reading.step % 3, reading.step - entry["last"])


def hurry(sites: Sites, keys: Iterable[str], step: int, every: int, young: int) -> None:
    """Let sites have their next turn before the next round, all at the same step, from `young` on, in place."""
    soon = (max(step, young - 1) // _between(every) + 1) * _between(every)
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


def _next_round(step: int, every: int, firsts: Sequence[int]) -> int:
    """Return the first step of a round to come."""
    return next((first for first in firsts if first > step), (step // every + 1) * every)


def _sites_in(reading: Reading, reach: Reach) -> set[str]:
    return {site_key(site) for error in reading.errors if error.reach == reach for site in error.sites}


def _exposure(entry: State) -> float:
    """Return the most that the site adds, as far as the next layer, to what one layer suffers."""
    shares = [value for part in ("own", "near") for layer, value in entry[part]["shares"].items() if layer != ALL]
    return max(shares, default=0.0) * entry["rel"] ** 2


def _growth(keys: set[str], known: Sites, sites: Sites) -> float:
    """Return what these sites add now / what was known of them; 1 where some were never followed."""
    before = sum(noise_of(known[key]) * sites[key]["seen"] ** 2 for key in keys)
    if not before or not all(known[key]["far"]["n"] for key in keys):
        return 1.0
    return sum(noise_of(sites[key]) * sites[key]["seen"] ** 2 for key in keys) / before


def _most_noise_first(keys: Iterable[str], sites: Sites) -> list[str]:
    """Return the keys ordered by the step from which on they are due; of one round, those that add the most first."""
    return sorted(keys, key=lambda key: (sites[key]["due"], -noise_of(sites[key]) * sites[key]["rel"] ** 2, key))


def _is_to_follow(entry: State) -> bool:
    """Return whether the site's error is to be followed; no more where its step is the finest and it does no harm."""
    is_finest = entry["far"]["n"] > 0 and 2.0 * entry["rel"] * entry["unit"] <= FINEST_STEP
    return entry["travels"] and not is_finest


def _is_to_be_told_apart(entry: State) -> bool:
    """Return whether what the site adds is to be told apart from what others add; see Note [Together]."""
    if not entry["travels"]:
        return not entry["own"]["n"]
    is_its_turn = entry["far"]["n"] % APART_EVERY == 0 if entry["role"] == ALIKE else not entry["far"]["n"]
    return is_its_turn and _is_to_follow(entry)


def _sets(first: str, chosen: list[str], sites: Sites, step: int) -> list[list[str]]:
    """Return the sets to measure at once: all sites, or each kind's where they were not told apart for long.

    `first` is one whose turn it is and whose error travels; those whose errors do not go with its kind.
    """
    apart = sites[first]["apart"]
    if step < min(ALONE_AT * apart, apart + ALONE_AFTER):
        return [chosen]
    kinds: dict[str, list[str]] = {_kind_of(sites[first]): []}
    for key in chosen:
        kinds.setdefault(_kind_of(sites[key if sites[key]["travels"] else first]), []).append(key)
    return list(kinds.values())


def _told_apart(reading: Reading, sites: Sites) -> set[str]:
    """Return the sites whose errors were followed, and each told from the others' or at least its kind's."""
    sets = [{site_key(site) for site in error.sites} for error in reading.errors if error.reach in ("far", "all")]
    travelling = [{key for key in keys if sites[key]["travels"]} for keys in sets]
    alone = set[str]().union(*(keys for keys in travelling if len({_kind_of(sites[key]) for key in keys}) == 1))
    far = _sites_in(reading, "far")
    return alone | far if _sites_in(reading, "near") & far else alone


def _kind_of(entry: State) -> str:
    """Return the role, one for all that stands behind an exponential: it may take but a part of any limit."""
    return "exponential" if entry["role"] in ATTENTION | LOG_SOFTMAX else entry["role"]


def _is_known_batch_norm(entry: State) -> bool:
    """Return whether what the site does near by is not told apart any more; see Note [Together]."""
    return entry["role"] == ALIKE and entry["far"]["n"] > 0


def _within_quota(keys: list[str], sites: Sites, is_finer: bool = True) -> list[str]:
    """Return the first of the keys, then as many others as fit, by bytes of originals or of what codes left out."""
    room = QUOTA * sum(entry["numel"] for entry in sites.values())
    chosen: list[str] = []
    for key in keys:
        size = sites[key]["numel"] * (LEFT_OUT_BITS / EXACT_BITS if is_finer else 1.0)
        if not chosen or size <= room:
            chosen.append(key)
            room -= size
    return chosen


def _sites(keys: Iterable[str]) -> frozenset[Site]:
    return frozenset(site_of(key) for key in keys)
