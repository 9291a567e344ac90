"""Noise(e2): the error that compression adds to the gradient is at most e2 of the gradient's energy.

The promise, over any 10 audits: the mean of ||error||^2 / ||gradient||^2 is at most e2, none exceeds 1.5 e2, and no
layer's own share exceeds 4 e2. docs/bounds.md says what it rests on and what it does not cover.

How: what each site adds to the gradient and to each layer is measured in the run, a few sites at a time
(sensitivity.py); the budget is then spent where it buys the most bytes, with a limit per layer (rates.py). The state:

    sites         what is known of each, and its bound; see sensitivity.py
    loads         the noise expected in all and in each layer, as a share of its gradient
    spreads       by layer, how far measurements lie from what was expected; see Note [Spread] in sensitivity.py
    calibration   measured / expected noise in audits, a slow mean
    broken        by layer, whose limit a measurement or an audit found exceeded: the step, and the share of the last

Bounds are set anew when all sites that were due have had their turn, every few steps until then, and at once when a
measurement says that a layer or the whole gets more than its share. A bound becomes looser by at most LOOSEN and only
after a new measurement, the second at least, and not one that found much more than expected; errors that travel must
have been followed once. What no step keeps within the limits is kept exactly, and tried again later: what is exact is
not measured, so what was known of it is slowly forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from slimgrad.bounds import sensitivity
from slimgrad.bounds.base import (
    FIRST_STEPS,
    NEGLIGIBLE,
    NOTHING,
    Reading,
    Request,
    Site,
    State,
    is_due,
    site_key,
    site_of,
)
from slimgrad.bounds.fixed import Exact, Relative
from slimgrad.bounds.rates import COARSEST_STEP, EXACT_BITS, FINEST_STEP, Item, cheapest, factor_of
from slimgrad.bounds.sensitivity import (
    ALL,
    PARTS,
    START,
    Sites,
    loads,
    noise_of,
    shares_of,
    unknown_share,
)
from slimgrad.errors import ConfigError

AIM = 0.8  # of e2: between the half that must be used and the whole that must not be passed, for drift and chance
SIGMAS = 3.0  # between what is aimed at in a layer and its limit, by the spread of what was measured in it
QUOTA, FIRST_QUOTA = 1 / 16, 1 / 8  # of all values: originals that may be kept in one step; until each was measured
LOOSEN, LOOSEN_TRIFLE = 2.0, 4.0  # at most, from one measurement to the next; where a site adds no more than ...
TRIFLE = 1 / 2000  # ... of what is aimed at, in all and in every layer
SET_EVERY = 5  # steps, while some sites wait for their turn
ALARM = 1.2  # x what is aimed at: expected from here on, bounds are set anew at once
ABSENT = 5  # steps until a site that did not run in its turn has another
SURPRISE = 1.5  # x what was known of a site: from here on, its next turn comes sooner
RECENT = 2.5  # x every: a site that sat out a round was measured less long ago than this
GONE = 5  # x every: a site that has not run for longer, in a layer frozen since, say, is new when it runs again
FINER_BITS = 3.0  # per value: what a finer code takes beyond the code itself, in whose place it is measured
SMALL = 1 / 500  # of all values: the smallest tensors, up to this much in all, are coded as finely as can be
LITTLE = 1 / 20  # of a layer's limit: below, an audit that finds many times what was expected says nothing
FORGET = 0.5  # per round: what was known of a site that is exact now
CALIBRATE, CALIBRATED = 0.2, (0.25, 4.0)  # weight of an audit, and limits of what audits may do
WORTH_A_REMARK = 0.05  # share of the values: small tensors are exact where that is cheap


@dataclass(frozen=True, slots=True)
class Noise:
    """At most the share `e2` of the gradient's energy is error; statistics every `every` steps."""

    e2: float = 0.05
    every: int = 100
    cap: float = 4.0  # x e2: the most that one layer's own gradient may suffer; math.inf for no such limit
    derives: ClassVar[bool] = True  # nothing is promised of single values; see derived.py

    def __post_init__(self) -> None:
        if (
            isinstance(self.e2, bool)
            or not isinstance(self.e2, (int, float))
            or not math.isfinite(self.e2)
            or self.e2 <= 0
        ):
            raise ConfigError(
                f"Noise expected a positive share of the gradient's energy, got {self.e2!r}; "
                "write Noise(0.05), or Exact() for no error"
            )
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"Noise expected every to be a number of steps, got {self.every!r}; write Noise(0.05)")
        if not isinstance(self.cap, (int, float)) or not self.cap > 0:
            raise ConfigError(
                f"Noise expected cap to be a positive multiple of e2, got {self.cap!r}; "
                "write Noise(0.05, cap=4.0), or cap=math.inf for no limit on single layers"
            )

    def start(self) -> State:
        return {"calibration": 1.0, "sites": {}, "loads": {}, "spreads": {}, "broken": {}}

    def at(self, site: Site, state: State) -> Exact | Relative:
        entry = state["sites"].get(site_key(site))
        rel = START if entry is None else entry["rel"]
        return Relative(rel) if rel else Exact()

    def wants(self, step: int, state: State) -> Request:
        sites = state["sites"]
        if not sites:  # originals of all sites at once would be the memory of a plain step
            return Request(gradients=None) if is_due(step, self.every) else NOTHING
        due = _most_noise_first([key for key, entry in sites.items() if entry["rel"] and entry["due"] <= step], sites)
        far = _of_one_role([key for key in due if _is_to_follow(sites[key])], sites)
        new = [key for key in far if not sites[key]["far"]["n"]]
        if new:
            return Request(travels=_sites(_within_quota(new, sites)))
        if far:
            return Request(travels=_sites(_within_quota(far, sites, FINER_BITS)))
        if not due and is_due(step, self.every) and not any(entry["rel"] for entry in sites.values()):
            due = list(sites)  # exact ones are not measured, but it is time to forget a little
        return Request(errors=_sites(_within_quota(due, sites)))

    def update(self, state: State, reading: Reading) -> State:
        known, step = state["sites"], reading.step
        sites = {key: dict(entry) for key, entry in known.items()}
        for one in reading.sites:
            key = site_key(one.site)
            sites[key] = {**sensitivity.seen(sites.get(key), one, reading.energy), "last": step}
        sites = {key: entry for key, entry in sites.items() if not self._is_gone(entry, step)}
        spreads = sensitivity.spreads(state["spreads"], sites, reading, state["loads"], RECENT * self.every)
        for error in reading.errors:
            sensitivity.measure(sites, error, reading, state["loads"])
        self._give_turns(sites, known, reading)
        if is_due(step, self.every):
            _forget(sites)
        broken = {
            layer: [step, value / max(reading.layers.get(layer, 0.0), NEGLIGIBLE * reading.energy)]
            for error in reading.errors
            for layer, value in error.layers.items()
            if value > self.cap * self.e2 * max(reading.layers.get(layer, 0.0), NEGLIGIBLE * reading.energy)
        }
        state = {**state, "sites": sites, "spreads": spreads, "broken": {**state["broken"], **broken}}
        state["loads"] = sensitivity.moved(state["loads"], known, sites)
        is_waiting = any(entry["rel"] and entry["due"] <= step for entry in sites.values())
        is_time = not is_waiting or step % SET_EVERY == 0 or sites.keys() != known.keys()
        if is_time or self._is_alarming(state):
            sensitivity.fill_in(sites)
            state["loads"] = self._spend(sites, state["calibration"], spreads)
        return state

    def noise(self, state: State) -> float | None:
        return state["calibration"] * state["loads"][ALL] if state["sites"] else None

    def audited(self, state: State, measured: float, layers: Mapping[str, float], step: int) -> State:
        """Learn from an audit how far expectation and truth are apart, in all and in each layer."""
        expected = self.noise(state)
        if not expected or not 0.0 < measured < math.inf:
            return state
        low, high = CALIBRATED
        calibration = min(high, max(low, state["calibration"] * (measured / expected) ** CALIBRATE))
        is_told = self.cap < math.inf and sensitivity.is_complete(state["sites"])
        known, loads = state["spreads"], state["loads"] if is_told else {}
        little = LITTLE * self.cap * self.e2
        ratios = {
            layer: (share + little) / (loads[layer] + little) for layer, share in layers.items() if layer in loads
        }
        spreads = {**known, **{layer: sensitivity.spread_of(known, layer, ratio) for layer, ratio in ratios.items()}}
        broken = {layer: [step, share] for layer, share in layers.items() if share > self.cap * self.e2}
        sites = {key: dict(entry) for key, entry in state["sites"].items()}
        return {
            **state,
            "loads": self._spend(sites, calibration, spreads),
            "sites": sites,
            "calibration": calibration,
            "spreads": spreads,
            "broken": {**state["broken"], **broken},
        }

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
            reason = "since no step would keep the promise"
            lines.append(f"{self!r} keeps {len(exact)} tensors exactly, {reason}: {_few(exact)}")
        if state["broken"]:
            step, share, layer = max((step, share, layer) for layer, (step, share) in state["broken"].items())
            lines.append(
                f"{self!r}: errors of single layers exceeded {self.cap * self.e2:.3g} of their own gradients: "
                f"{_few(state['broken'])}; last {layer or 'the model'}, {share:.3g} at step {step}; "
                "what causes them was coded more finely since"
            )
        return lines

    def _is_gone(self, entry: State, step: int) -> bool:
        """Return whether a site has not run for so long that its share is for others; exact ones have none."""
        return entry["rel"] > 0 and step - entry["last"] > GONE * self.every

    def _give_turns(self, sites: Sites, known: Sites, reading: Reading) -> None:
        """Set when each site that was to be measured is to be measured again, in place; see Note [When]."""
        seen = {site_key(one.site) for one in reading.sites}
        wanted = {site_key(one.site) for one in reading.sites if one.rms or one.density < 1.0}
        for key, entry in sites.items():
            if key in wanted:
                usual = SURPRISE * noise_of(known[key]) if key in known else math.inf
                is_surprise = noise_of(entry) > max(usual, TRIFLE * self.e2 / entry["seen"] ** 2)
                entry["due"] = self._next_round(reading.step)
                if reading.step >= self.every and not is_surprise:
                    entry["due"] += self.every
                entry["fresh"] = entry["fresh"] and not is_surprise
            elif key not in seen and entry["due"] <= reading.step:
                entry["due"] = reading.step + ABSENT  # it did not run: others first

    def _next_round(self, step: int) -> int:
        """Return the first step of the round after this one: within a round each site that is due has its turn."""
        return next((first for first in FIRST_STEPS if first > step), (step // self.every + 1) * self.every)

    def _is_alarming(self, state: State) -> bool:
        loads, spreads = state["loads"], state["spreads"]
        spent = sum(noise_of(entry) * entry["rel"] ** 2 for entry in state["sites"].values())
        aims = self._aims(loads, spreads)
        return state["calibration"] * spent > ALARM * AIM * self.e2 or any(
            load > ALARM * aim for load, aim in zip(loads.values(), aims, strict=True)
        )

    def _aims(self, layers: Iterable[str], spreads: Mapping[str, float]) -> np.ndarray:
        """Return what is aimed at in each layer, a share of its gradient: below its limit as measurements scatter."""
        aims = [
            AIM if layer == ALL else self.cap * math.exp(-SIGMAS * math.sqrt(spread))
            for layer, spread in sensitivity.pooled(spreads, layers).items()
        ]
        return self.e2 * np.array(aims)

    def _spend(self, sites: Sites, calibration: float, spreads: Mapping[str, float]) -> dict[str, float]:
        """Choose the bounds of all sites, in place, and return the noise that is then expected."""
        small = _small(sites)
        keys = list(sites)
        unknown = {role: unknown_share(sites, role) for role in {entry["role"] for entry in sites.values()}}
        limits, budget = self._limits(sites, spreads), AIM * self.e2 / calibration
        trifles = _trifles(sites, limits, budget)
        items = [self._item(sites[key], key in small, key in trifles, unknown[sites[key]["role"]]) for key in keys]
        steps = cheapest(items, budget, limits)
        for key, step in zip(keys, steps, strict=True):
            entry = sites[key]
            rel = step / 2.0 / entry["unit"]
            if rel > entry["rel"]:
                entry["fresh"] = False
            entry["rel"] = rel
        return loads(sites)

    def _item(self, entry: State, is_small: bool, is_trifle: bool, unknown: float) -> Item:
        unit, rel, finest = entry["unit"], entry["rel"], FINEST_STEP / 2.0 / entry["unit"]
        is_known = entry["near"]["n"] >= 2 and entry["far"]["n"] if entry["travels"] else entry["own"]["n"] >= 2
        loosen = LOOSEN_TRIFLE if is_trifle else LOOSEN
        limit = max(rel * loosen if entry["fresh"] and is_known else rel, finest)
        if not entry["own"]["n"] and unknown > 0:
            limit = min(limit, math.sqrt(self._aims([""], {})[0] / unknown))
        coarsest = FINEST_STEP if is_small else min(COARSEST_STEP, 2.0 * limit * unit)
        factor = factor_of(entry["curve"], 2.0 * max(entry["seen"], finest) * unit, entry["bits"])
        return Item(entry["numel"], entry["curve"], factor, noise_of(entry) / (2.0 * unit) ** 2, coarsest)

    def _limits(self, sites: Sites, spreads: Mapping[str, float]) -> np.ndarray:
        """Return one row per layer: what a step of 1 RMS at each site adds, as a share of what the layer may suffer."""
        layers, shares = shares_of(sites)
        aims = self._aims(layers, spreads)
        units = np.array([entry["unit"] for entry in sites.values()])
        return shares / (2.0 * units) ** 2 / aims[:, None]


def _most_noise_first(keys: Iterable[str], sites: Sites) -> list[str]:
    """Return the keys ordered by the step from which on they are due; of one round, those that add the most first."""
    return sorted(keys, key=lambda key: (sites[key]["due"], -noise_of(sites[key]) * sites[key]["rel"] ** 2, key))


def _is_to_follow(entry: State) -> bool:
    """Return whether the site's error is to be followed; no more where its step is the finest and it does no harm."""
    is_finest = entry["far"]["n"] > 0 and 2.0 * entry["rel"] * entry["unit"] <= FINEST_STEP
    return entry["travels"] and not is_finest


def _of_one_role(keys: list[str], sites: Sites) -> list[str]:
    """Return those of the role of the first: what roles do together says nothing about a small share of one of them."""
    return [key for key in keys if sites[key]["role"] == sites[keys[0]]["role"]]


def _sites(keys: Iterable[str]) -> frozenset[Site]:
    return frozenset(site_of(key) for key in keys)


def _within_quota(keys: list[str], sites: Sites, more_bits: float | None = None) -> list[str]:
    """Return the first of the keys, then as many others as fit: by originals, or codes of so many more bits a value."""
    is_first = not all(entry["own"]["n"] for entry in sites.values() if entry["rel"])
    room = (FIRST_QUOTA if is_first else QUOTA) * sum(entry["numel"] for entry in sites.values())
    chosen: list[str] = []
    for key in keys:
        entry = sites[key]
        size = entry["numel"] * (1.0 if more_bits is None else (entry["bits"] + more_bits) / EXACT_BITS)
        if not chosen or size <= room:
            chosen.append(key)
            room -= size
    return chosen


def _small(sites: Sites) -> set[str]:
    """Return the smallest sites, SMALL of all values together: a fine code of them costs nothing."""
    room = SMALL * sum(entry["numel"] for entry in sites.values())
    small: set[str] = set()
    for key in sorted(sites, key=lambda key: (sites[key]["numel"], key)):
        room -= sites[key]["numel"]
        if room < 0:
            break
        small.add(key)
    return small


def _trifles(sites: Sites, limits: np.ndarray, budget: float) -> set[str]:
    """Return the sites that add next to nothing, to the whole and to any layer."""
    used = (limits * [(2.0 * entry["rel"] * entry["unit"]) ** 2 for entry in sites.values()]).max(axis=0, initial=0.0)
    return {
        key
        for (key, entry), most in zip(sites.items(), used, strict=True)
        if max(most, noise_of(entry) * entry["rel"] ** 2 / budget) < TRIFLE
    }


def _forget(sites: Sites) -> None:
    for entry in sites.values():
        if not entry["rel"]:
            entry |= {part: sensitivity.scaled(entry[part], FORGET) for part in PARTS}


def _few(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(name or "the model" for name in names))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
