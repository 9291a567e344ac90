"""Noise(e2): the error that compression adds to the gradient is at most e2 of the gradient's energy.

The promise, over any 10 audits: the mean of ||error||^2 / ||gradient||^2 is at most e2, none exceeds 1.5 e2, and no
layer's own share exceeds 4 e2. docs/bounds.md says what it rests on and what it does not cover.

How: the noise of a site grows with the square of its step, and the sites' noises add up (docs/bounds.md has both
measured), so one number per site, its sensitivity, says what a step costs. Sensitivities are measured in the run, a few
sites at a time; the budget is then spent where it buys the most bytes (rates.py). The state:

    sites         per site: role, numel, bits, unit, curve, travels; rel, the bound now (0: exact), and seen, that of
                  the last reading; noise at rel = 1, own in the layer's own parameters and far in others; worst_own
                  and worst_far, the same as a share of the layer that suffers most; n_own and n_far, measurements;
                  at_own and at_far, step of the last; fresh, whether one came since the bound was last loosened
    calibration   measured / expected noise in audits, a slow mean

Note [Caution]. A sensitivity rises quickly and falls slowly. A bound becomes looser by at most LOOSEN and only after a
new measurement, the second at least, of its own; for errors that travel, of where they went. It becomes tighter at
once. Mistrusting what others of the role show is not mere caution: the noise of a GPT's last norm grew 800-fold in 120
steps, unseen, while those of its other norms hardly changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from slimgrad.bounds import formulas
from slimgrad.bounds.base import (
    FIRST_STEPS,
    ErrorReading,
    Reading,
    Request,
    Site,
    SiteReading,
    State,
    is_due,
    site_key,
    site_of,
)
from slimgrad.bounds.fixed import Exact, Relative
from slimgrad.bounds.rates import Item, bits, cheapest
from slimgrad.errors import ConfigError

START = 0.25
AIM = 0.7  # of e2: between the half that must be used and the whole that must not be passed, for drift and chance
CAP = 4.0  # x e2: the most that one layer's own gradient may suffer ...
CAP_OF_SITE = 0.5  # ... of which one site may cause this share, since others reach the layer too
QUOTA = 1 / 16  # of all values: originals that may be kept in one step
RISE, FALL = 0.5, 0.3  # weights of a new measurement that is above or below what was known
LOOSEN = 2.0**0.5
TYPICAL = 0.004  # noise at rel = 1 of a site whose error travels, before any was measured
DRIFT_UP, DRIFT_DOWN = 0.7, 0.3  # how far sites follow others of their role when these rise or fall ...
MOST_DRIFT = 4.0  # ... and from what change on no farther
COHERENCE = 2.0  # rounding errors are not independent: what formulas give, times this, before any was measured
CALIBRATE, CALIBRATED = 0.2, (0.25, 4.0)  # weight of an audit, and limits of what audits may do
WORTH_A_REMARK = 0.05  # share of the values: small tensors are exact where that is cheap
LOCAL_ROLES = frozenset({"conv input", "linear input"})


@dataclass(frozen=True, slots=True)
class Noise:
    """At most the share `e2` of the gradient's energy is error; statistics every `every` steps."""

    e2: float = 0.05
    every: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.e2, (int, float)) or not math.isfinite(self.e2) or self.e2 <= 0:
            raise ConfigError(
                f"Noise expected a positive share of the gradient's energy, got {self.e2!r}; "
                "write Noise(0.05), or Exact() for no error"
            )
        if not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"Noise expected every to be a number of steps, got {self.every!r}; write Noise(0.05)")

    def start(self) -> State:
        return {"calibration": 1.0, "sites": {}}

    def at(self, site: Site, state: State) -> Exact | Relative:
        entry = state["sites"].get(site_key(site))
        rel = START if entry is None else entry["rel"]
        return Relative(rel) if rel else Exact()

    def wants(self, step: int, state: State) -> Request:
        sites = state["sites"]
        if not sites:
            return Request(gradients=None, errors=None, travels=None)
        since = max((first for first in FIRST_STEPS if first <= step), default=1)
        since = max(since, step - step % self.every)
        far: list[str] = []
        if is_due(step, self.every):  # then some of the errors that travel are followed
            travelling = [key for key, entry in sites.items() if entry["travels"] and entry["rel"]]
            far = _of_one_role(_within_quota(_oldest_first("far", travelling, sites), sites), sites)
        due = [key for key, entry in sites.items() if entry["at_own"] < since and entry["rel"] and key not in far]
        chosen = far or _within_quota(_oldest_first("own", due, sites), sites)
        return Request(errors=_sites(chosen), travels=_sites(far))

    def update(self, state: State, reading: Reading) -> State:
        sites = {key: dict(entry) for key, entry in state["sites"].items()}
        energy = reading.energy / (1.0 + (self.noise(state) or 0.0))  # what was seen is gradient and error together
        for one in reading.sites:
            key = site_key(one.site)
            sites[key] = _seen(sites.get(key), one, energy)
        for error in reading.errors:
            _measure(error, sites, energy, reading.step)
        _fill_in(sites)
        self._spend(sites, state["calibration"])
        return {**state, "sites": sites}

    def noise(self, state: State) -> float | None:
        if not state["sites"]:
            return None
        return state["calibration"] * sum(_s(entry) * entry["rel"] ** 2 for entry in state["sites"].values())

    def audited(self, state: State, measured: float) -> State:
        """Learn from an audit how far expectation and truth are apart."""
        expected = self.noise(state)
        if not expected or not 0.0 < measured < math.inf:
            return state
        low, high = CALIBRATED
        calibration = state["calibration"] * (measured / expected) ** CALIBRATE
        return {**state, "calibration": min(high, max(low, calibration))}

    def remarks(self, state: State) -> list[str]:
        """Return what a report should say."""
        expected = self.noise(state)
        if expected is None:
            return []
        lines = [f"{self!r} expects gradient noise of {expected:.3f} of the gradient's energy"]
        sites = state["sites"]
        exact = [site_of(key)[0] or "the model" for key, entry in sites.items() if not entry["rel"]]
        n_exact = sum(entry["numel"] for entry in sites.values() if not entry["rel"])
        if n_exact > WORTH_A_REMARK * sum(entry["numel"] for entry in sites.values()):
            names = ", ".join(dict.fromkeys(exact[:3])) + (f" and {len(exact) - 3} more" if len(exact) > 3 else "")
            lines.append(f"{self!r} keeps {len(exact)} tensors exactly, since no step would keep the promise: {names}")
        return lines

    def _spend(self, sites: dict[str, State], calibration: float) -> None:
        """Choose the bounds of all sites, in place."""
        keys = list(sites)
        items = [self._item(sites[key]) for key in keys]
        for key, step in zip(keys, cheapest(items, AIM * self.e2 / calibration), strict=True):
            entry = sites[key]
            rel = step / 2.0 / entry["unit"]
            if rel > entry["rel"]:
                entry["fresh"] = False  # Note [Caution]
            entry["rel"] = rel

    def _item(self, entry: State) -> Item:
        unit, rel = entry["unit"], entry["rel"]
        n = entry["n_far"] if entry["travels"] else entry["n_own"]
        may_loosen = entry["fresh"] and n >= 2
        limit = max(rel, 1 / 32 / unit) * (LOOSEN if may_loosen else 1.0)
        worst = max(entry["worst_own"], entry["worst_far"])
        if worst > 0:
            limit = min(limit, math.sqrt(CAP * CAP_OF_SITE * self.e2 / worst))
        coarsest = 2.0 * min(1.0, limit) * unit  # where the unit is small, noise soon outgrows the square
        factor = entry["bits"] / float(bits(entry["curve"], 2.0 * max(entry["seen"], 1 / 32) * unit))
        return Item(entry["numel"], entry["curve"], factor, _s(entry) / (2.0 * unit) ** 2, coarsest)


def _oldest_first(part: str, keys: Iterable[str], sites: dict[str, State]) -> list[str]:
    """Return the keys in the order in which this part of their noise was measured last; the largest first of equals."""
    return sorted(keys, key=lambda key: (sites[key][f"at_{part}"], -sites[key][part] * sites[key]["rel"] ** 2, key))


def _of_one_role(keys: list[str], sites: dict[str, State]) -> list[str]:
    """Return those of the role of the first: what roles do together says nothing about a small share of one of them."""
    return [key for key in keys if sites[key]["role"] == sites[keys[0]]["role"]]


def _sites(keys: Iterable[str]) -> frozenset[Site]:
    return frozenset(site_of(key) for key in keys)


def _within_quota(keys: list[str], sites: dict[str, State]) -> list[str]:
    """Return the first of the keys, then as many others as fit."""
    room = QUOTA * sum(entry["numel"] for entry in sites.values())
    chosen: list[str] = []
    for key in keys:
        if not chosen or sites[key]["numel"] <= room:
            chosen.append(key)
            room -= sites[key]["numel"]
    return chosen


def _seen(entry: State | None, one: SiteReading, energy: float) -> State:
    """Return the entry of a site with what every reading tells, whether its error was measured or not."""
    curve = "centred" if one.is_centred else "sparse" if one.density < 0.9 else "signed"
    if entry is None:
        travels = one.role not in LOCAL_ROLES
        own, far = (0.0, TYPICAL) if travels else (_by_formula(one, energy), 0.0)
        entry = {"rel": one.rel or START, "fresh": False, "travels": travels, "curve": curve}
        entry |= {"own": own, "n_own": 0, "at_own": 0, "worst_own": 0.0}
        entry |= {"far": far, "n_far": 0, "at_far": 0, "worst_far": 0.0}
    elif one.rms:  # only then was density measured
        entry["curve"] = curve
    seen = {"role": one.role, "numel": one.numel, "bits": 8.0 * one.nbytes / max(1, one.numel), "unit": one.unit}
    return {**entry, **seen, "seen": one.rel or START}


def _by_formula(one: SiteReading, energy: float) -> float:
    """Return the noise at rel = 1 that the starting formula gives; TYPICAL where nothing is known of the gradients."""
    noise2 = sum(formulas.conv(reader, formulas.variance(one.eps), one.density) for reader in one.readers)
    return COHERENCE * noise2 / energy / one.rel**2 if noise2 > 0 and one.rel else TYPICAL


def _measure(error: ErrorReading, sites: dict[str, State], energy: float, step: int) -> None:
    """Learn from one measurement, in place; what several sites do together is shared out as it was expected of them."""
    keys = [key for key in map(site_key, error.sites) if key in sites and sites[key]["seen"]]
    part = "far" if error.travels else "own"
    expected = sum(sites[key][part] * sites[key]["seen"] ** 2 for key in keys)
    for key in keys:
        entry = sites[key]
        share = entry[part] / expected if expected > 0 else 1.0 / (len(keys) * entry["seen"] ** 2)  # per rel^2
        n = entry[f"n_{part}"]
        entry[part] = _learn(entry[part], error.noise2 / energy * share, n)
        entry[f"worst_{part}"] = _learn(entry[f"worst_{part}"], error.worst * share, n)
        entry["travels"] = entry["travels"] or error.travels
        entry |= {f"n_{part}": n + 1, f"at_{part}": step}
        entry["fresh"] = entry["fresh"] or error.travels == entry["travels"]
    if error.travels and expected > 0:
        _drift(sites, keys, error.noise2 / energy / expected)


def _drift(sites: dict[str, State], keys: list[str], ratio: float) -> None:
    """Let sites of the same roles, whose own turn is long ago or still to come, follow what was found, in place."""
    roles = {sites[key]["role"] for key in keys}
    factor = min(MOST_DRIFT, max(1.0 / MOST_DRIFT, ratio)) ** (DRIFT_UP if ratio > 1.0 else DRIFT_DOWN)
    for key, entry in sites.items():
        if entry["travels"] and entry["role"] in roles and key not in keys:
            entry["far"] *= factor
            entry["worst_far"] *= factor


def _learn(known: float, new: float, n: int) -> float:
    return new if n == 0 else known + (RISE if new > known else FALL) * (new - known)


def _fill_in(sites: dict[str, State]) -> None:
    """Give sites whose error was never measured the mean of those of their role that were, in place.

    Where an error ends up cannot be told from where it begins, but what sites of one role add differs little: in a
    trained ResNet-18 by a factor of three either way (docs/bounds.md).
    """
    for part in ("own", "far"):
        known: dict[str, list[float]] = {}
        for entry in sites.values():
            if entry["travels"] and entry[f"n_{part}"]:
                known.setdefault(entry["role"], []).append(entry[part])
        for entry in sites.values():
            if entry["travels"] and not entry[f"n_{part}"] and entry["role"] in known:
                entry[part] = sum(known[entry["role"]]) / len(known[entry["role"]])


def _s(entry: State) -> float:
    return entry["own"] + entry["far"]
