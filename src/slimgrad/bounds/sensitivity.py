"""What a run has learnt about its sites: how much noise each adds to the gradient, and to which layers.

A site's entry, a plain dict:

    role, numel, bits, unit, curve     as last seen; bits are those stored per value
    rel, seen         the bound now (0: exact), and that of the last reading
    travels           whether its error goes on to earlier layers
    own, near, far    what it adds at rel = 1 to the parameters of the functions that read it, to the layers next on
                      its way, and to all that its error travels to, these included. noise: a share of the whole
                      gradient; shares: of each layer's own gradient; n and at: measurements, and the step of the last
    fresh             whether a measurement came since the bound was last loosened
    tried             the bound at which it was last measured
    due, last         the step from which on it is to be measured again, see turns.py; the last in which it was seen
    apart             the last step in which what sites of its kind add was told from what others do

Noise grows with the square of the bound and the noises of sites add up (docs/bounds.md has both measured), so these
numbers say what any choice of bounds adds, in all and to each layer.

Note [Kin]. Where an error goes is believed of the site itself and of no other: the noise of a GPT's last norm grew
800-fold in 120 steps, unseen, while those of its other norms hardly changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from slimgrad.bounds import formulas
from slimgrad.bounds.base import NEGLIGIBLE, ErrorReading, Reach, Reading, SiteReading, State, site_key

START = 0.25
LEARN = 0.4  # weight of a new measurement: with equal weights and bounds, batches differ by a factor of three
FORGOTTEN = 5  # x its age: so much older, what was found says nothing of a network any more; near is told more often
TYPICAL = 0.004  # noise at rel = 1 of a site whose error travels, before any was measured
DRIFT = 0.5  # how far errors are taken to follow those near by, and of their role ...
MOST_DRIFT = 4.0  # ... and from what change on no farther
ASTRAY = 0.02  # of what several sites do together: shared out by their noise, wherever that went before
COHERENCE = 2.0  # rounding errors are not independent: what formulas give, times this, before any was measured
MOST_NOISE = 9.0  # x a layer's gradient: from there on, how much of what was seen is error cannot be told
LOCAL_ROLES = frozenset({"conv input", "linear input"})
PARTS = ("own", "near", "far")
UNKNOWN: State = {"noise": 0.0, "shares": {}, "n": 0, "at": 0}
ALL = "*"  # the whole gradient, among the layers: there where layers do not weigh what their energies are

# Of an entry; those of earlier versions lack some.
KEYS = frozenset({"role", "numel", "bits", "unit", "curve", "rel", "seen", "travels", *PARTS, "fresh", "tried", "due"})
KEYS |= {"last", "apart"}

Sites = dict[str, State]


def seen(entry: State | None, one: SiteReading, energy: float) -> State:
    """Return the entry of a site with what every reading tells, whether its error was measured or not."""
    curve = "centred" if one.is_centred else "sparse" if one.density < 0.9 else "signed"
    if entry is None:
        travels = one.role not in LOCAL_ROLES
        own, far = (0.0, TYPICAL) if travels else (_by_formula(one, energy), 0.0)
        entry = {"rel": one.rel or START, "tried": 0.0, "fresh": False, "travels": travels, "curve": curve}
        entry |= {"due": 0, "apart": 0}
        starts = (("own", own), ("near", 0.0), ("far", far))
        entry |= {part: {**UNKNOWN, "noise": noise} for part, noise in starts}
    elif one.rms:  # only then was density measured
        entry["curve"] = curve
    now = {"role": one.role, "numel": one.numel, "bits": 8.0 * one.nbytes / max(1, one.numel), "unit": one.unit}
    return {**entry, **now, "seen": one.rel or START}


def measure(sites: Sites, error: ErrorReading, reading: Reading, energies: Mapping[str, float]) -> None:
    """Learn from one measurement, in place; what several sites do together is shared out as it was expected of them.

    `energies` are those of `energies_of`: gradients were seen with their errors.
    """
    keys = [key for key in map(site_key, error.sites) if key in sites and sites[key]["seen"]]
    pairs: list[tuple[str, Reach]] = [(key, part) for key in keys for part in reaches_of(sites[key], error.reach)]
    before = sum(sites[key][reach]["noise"] * sites[key]["seen"] ** 2 for key, reach in pairs)
    nears = _nears(reading) if error.reach == "far" else {}
    fars = {key: sites[key]["far"]["noise"] for key in keys if key not in nears}
    for (key, reach), own in zip(pairs, _shared_out(error, sites, pairs, nears), strict=True):
        _measure_one(sites[key], replace(own, reach=reach), reading, energies)
    if error.reach in ("far", "all"):
        for key, far in fars.items():  # what is far contains what is near, which was not told apart
            if far > 0:
                sites[key]["near"] = scaled(sites[key]["near"], sites[key]["far"]["noise"] / far)
        if before > 0:
            _drift(sites, keys, error.noise2 / reading.energy / before)


def reaches_of(entry: State, reach: Reach) -> tuple[Reach, ...]:
    """Return the parts of an entry that a reading is about; of what is measured at once, all that is known."""
    whole: tuple[Reach, ...] = ("own", "far")
    return tuple(part for part in whole if entry[part]["n"]) if reach == "all" else (reach,)


def _nears(reading: Reading) -> dict[str, Mapping[str, float]]:
    """Return the errors of layers that sites were found to add near by, each alone."""
    return {site_key(site): error.layers for error in reading.errors if error.reach == "near" for site in error.sites}


def _measure_one(entry: State, error: ErrorReading, reading: Reading, energies: Mapping[str, float]) -> None:
    noise, shares = noise_and_shares(error, reading, energies)
    name, goes_on, rel2 = error.reach, error.reach != "own", entry["seen"] ** 2
    part = entry[name]
    if name == "near" and part["n"] and part["noise"] > 0:
        entry["far"] = scaled(entry["far"], _followed(noise / (part["noise"] * rel2)))
    is_old = name != "near" and reading.step >= FORGOTTEN * part["at"]
    entry[name] = _learn(part, noise / rel2, {layer: s / rel2 for layer, s in shares.items()}, reading.step, is_old)
    entry["travels"] = entry["travels"] or goes_on
    if goes_on == entry["travels"]:
        entry |= {"fresh": True, "tried": entry["seen"]}


def _shared_out(
    error: ErrorReading, sites: Sites, pairs: list[tuple[str, Reach]], nears: Mapping[str, Mapping[str, float]]
) -> list[ErrorReading]:
    """Return one reading per part of a site of what several do together: of every layer's error what each did ...

    ... near by, where that was told apart, and of the rest what was expected of each. A little goes by noise alone: a
    site that was not seen to reach a layer may do so now. The first time it all goes by what each does near by.
    """
    if len(pairs) <= 1:
        return [error] * len(pairs)
    parts = [sites[key][reach] for key, reach in pairs]
    rel2 = np.array([sites[key]["seen"] ** 2 for key, _ in pairs])
    is_first = error.reach == "far" and not any(part["n"] for part in parts)
    noise = np.array([sites[key]["near" if is_first else reach]["noise"] for key, reach in pairs]) * rel2
    noise = noise / noise.sum() if noise.sum() > 0 else np.full(len(pairs), 1.0 / len(pairs))
    split: list[dict[str, float]] = [{} for _ in pairs]
    for layer, value in error.layers.items():
        near = np.array([nears.get(key, {}).get(layer, 0.0) for key, _ in pairs])
        near *= min(1.0, value / near.sum()) if near.sum() > 0 else 0.0
        known = np.array([part["shares"].get(layer, 0.0) for part in parts]) * rel2
        known = np.where(near > 0, 0.0, known)
        known = known / known.sum() if known.sum() > 0 else noise
        of_each = near + (value - near.sum()) * ((1.0 - ASTRAY) * known + ASTRAY * noise)
        for own, share in zip(split, of_each.tolist(), strict=True):
            own[layer] = share
    return [replace(error, noise2=sum(own.values()), layers=own) for own in split]


def fill_in(sites: Sites) -> None:
    """Give sites whose error was never measured the mean of those of their role that were, in place.

    Where an error ends up cannot be told from where it begins, but what sites of one role add differs little: in a
    trained ResNet-18 by a factor of three either way (docs/bounds.md).
    """
    for name in PARTS:
        known: dict[str, list[float]] = {}
        for entry in sites.values():
            if entry["travels"] and entry[name]["n"]:
                known.setdefault(entry["role"], []).append(entry[name]["noise"])
        for entry in sites.values():
            if entry["travels"] and not entry[name]["n"] and entry["role"] in known:
                mean = sum(known[entry["role"]]) / len(known[entry["role"]])
                entry[name] = {**entry[name], "noise": mean}


def noise_of(entry: State) -> float:
    """Return what the site adds to the whole gradient at rel = 1."""
    return entry["own"]["noise"] + travelling(entry)


def travelling(entry: State) -> float:
    """Return what the site adds to other layers than those that read it, at rel = 1."""
    return max(entry["near"]["noise"], entry["far"]["noise"])


def shares_of(sites: Sites) -> tuple[list[str], np.ndarray]:
    """Return all layers to which some site was seen to add noise, and what each site adds to each at rel = 1.

    One row per layer, one column per site. Errors that were never followed are taken to be everywhere alike.
    """
    layers = sorted({layer for entry in sites.values() for part in PARTS for layer in entry[part]["shares"]})
    rows = {layer: row for row, layer in enumerate(layers)}
    shares = np.zeros((len(layers), len(sites)))
    for column, entry in enumerate(sites.values()):
        own, near, far = (entry[part]["shares"] for part in PARTS)
        if not entry["far"]["n"]:
            shares[:, column] = entry["far"]["noise"]
        for layer, share in far.items():
            shares[rows[layer], column] = share
        for layer, share in near.items():
            shares[rows[layer], column] = max(share, shares[rows[layer], column])
        for layer, share in own.items():
            shares[rows[layer], column] += share
    return layers, shares


def is_complete(sites: Sites) -> bool:
    """Return whether the error of every site that has one was measured, and followed where it travels."""
    coded = [entry for entry in sites.values() if entry["rel"]]
    return all(entry["far" if entry["travels"] else "own"]["n"] for entry in coded)


def unknown_share(sites: Sites, role: str) -> float:
    """Return the largest share of a layer that a site of this role was seen to add, directly, at rel = 1."""
    known = [entry["own"]["shares"] for entry in sites.values() if entry["role"] == role]
    return max((share for shares in known for layer, share in shares.items() if layer != ALL), default=0.0)


def loads(sites: Sites) -> dict[str, float]:
    """Return the noise that is expected now in each layer, as a share of its gradient, and in the whole."""
    layers, shares = shares_of(sites)
    expected = shares @ np.array([entry["rel"] ** 2 for entry in sites.values()]) if layers else ()
    whole = sum(noise_of(entry) * entry["rel"] ** 2 for entry in sites.values())
    return {ALL: whole, **{layer: float(load) for layer, load in zip(layers, expected, strict=True)}}


def moved(expected: Mapping[str, float], before: Sites, after: Sites) -> dict[str, float]:
    """Return the loads after some sites were measured: only what these add is counted again."""
    sums = dict(expected)
    for key, entry in after.items():
        if key in before and any(entry[part] is not before[key][part] for part in PARTS):
            for sites, sign in ((before, -1.0), (after, 1.0)):
                for layer, load in loads({key: sites[key]}).items():
                    sums[layer] = max(0.0, sums.get(layer, 0.0) + sign * load)
    return sums


def energies_of(reading: Reading, expected: Mapping[str, float]) -> dict[str, float]:
    """Return the energies of the gradient and of each layer's, without the errors that `loads` expects in them."""
    floor = NEGLIGIBLE * reading.energy
    energies = {layer: max(floor, energy / _grown(expected, layer)) for layer, energy in reading.layers.items()}
    return {**energies, ALL: reading.energy / _grown(expected, ALL)}


def noise_and_shares(
    error: ErrorReading, reading: Reading, energies: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Return what an error is of the gradient, as the budget counts it, and of each layer's own."""
    noise = error.noise2 / energies[ALL]
    shares = {layer: value / energies[layer] for layer, value in error.layers.items() if layer in energies}
    if not reading.weights:
        return noise, shares
    return sum(reading.weights.get(layer, 0.0) * share for layer, share in shares.items()), {**shares, ALL: noise}


def _grown(expected: Mapping[str, float], layer: str) -> float:
    """Return the energy of a gradient with its expected error / that of the gradient."""
    return 1.0 + min(MOST_NOISE, expected.get(layer, 0.0))


def _by_formula(one: SiteReading, energy: float) -> float:
    """Return the noise at rel = 1 that the starting formula gives; TYPICAL where nothing is known of the gradients."""
    noise2 = sum(formulas.conv(reader, formulas.variance(one.eps), one.density) for reader in one.readers)
    return COHERENCE * noise2 / energy / one.rel**2 if 0 < noise2 < math.inf and one.rel else TYPICAL


def _learn(part: State, noise: float, shares: Mapping[str, float], step: int, is_old: bool) -> State:
    """Return what is known after a measurement; what is old is forgotten."""
    known, n = part["shares"], part["n"]
    if n and not is_old:
        noise = part["noise"] + LEARN * (noise - part["noise"])
        learnt = {layer: share + LEARN * (shares.get(layer, 0.0) - share) for layer, share in known.items()}
        shares = {**shares, **learnt}
    return {"noise": noise, "shares": dict(shares), "n": n + 1, "at": step}


def _drift(sites: Sites, keys: list[str], ratio: float) -> None:
    """Let sites of the same roles, whose own turn is long ago or still to come, follow what was found, in place."""
    roles, factor = {sites[key]["role"] for key in keys}, _followed(ratio)
    for key, entry in sites.items():
        if entry["travels"] and entry["role"] in roles and key not in keys:
            entry["far"] = scaled(entry["far"], factor)


def _followed(ratio: float) -> float:
    """Return the factor for what was not measured, where something akin to it has changed by this ratio."""
    return min(MOST_DRIFT, max(1.0 / MOST_DRIFT, ratio)) ** DRIFT


def scaled(part: State, factor: float) -> State:
    """Return what a site adds, times a factor."""
    shares = {layer: share * factor for layer, share in part["shares"].items()}
    return {**part, "noise": part["noise"] * factor, "shares": shares}
