"""Noise(e2): the error that compression adds to the gradient is at most e2 of the gradient's energy.

The promise, over any 10 audits: the mean of ||error||^2 / ||gradient||^2 is at most e2, none exceeds 1.5 e2, and no
layer's own error, summed over the ten, exceeds 4 e2 of its gradient's energy, summed likewise. docs/bounds.md says what
it rests on and what it does not cover.

How: what each site adds to the gradient and to each layer is measured in the run (sensitivity.py), in a step now and
then (turns.py); how well that foretells the next measurement is measured too (foresight.py); the budget is then spent
where it buys the most bytes, with a limit per layer (rates.py), of which what stands behind an exponential may take but
a part. The state, beside what foresight.py keeps in it:

    sites         what is known of each, and its bound; see sensitivity.py
    loads         the noise expected in all and in each layer, as a share of its gradient, before any correction
    broken        by layer, whose limit a measurement or an audit found exceeded: the step, and the share of the last

Bounds are set anew when all sites that were due have had their turn, every few steps until then, and at once when a
measurement, or a look between rounds, says that a layer or the whole gets more than its share. From step YOUNG on,
later where there is attention, a bound becomes looser, at most twofold, there fourfold, and only after a new
measurement, the second at least, and not one that found much more than expected; errors that travel must have been
followed once. While that alone keeps many bytes, measurements come sooner, but not where there is attention. What no
step keeps within the limits is kept exactly, and tried again later: what is exact is not measured, so what was known of
it is slowly forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from slimgrad.bounds import foresight, sensitivity, turns
from slimgrad.bounds.base import (
    ATTENTION,
    LOG_SOFTMAX,
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
from slimgrad.bounds.rates import COARSEST_STEP, FINEST_STEP, Item, bits, cheapest, factor_of
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

START_MEANT_FOR = 0.05  # e2: what Relative(START) for all costs narrow networks, 0.045 to 0.053 (docs/bounds.md) ...
WITH_ATTENTION = 0.2  # ... and at most where there is attention: by parameters, at step 20 of a GPT
YOUNG_WITH_ATTENTION = 50  # steps: until then no bound is loosened there, elsewhere until foresight.YOUNG
NEW = 4  # x every: from here on, a network ages little from one round to the next
# What is aimed at in a new network and later, of e2 and of a layer's limit: between the half that must be used and the
# whole that must not be passed, for drift and chance. A figure of a layer rests on few measurements; where there is
# attention, batches differ more, and errors grow in leaps at first
AIMS, AIMS_ATTENDING = ((0.72, 0.28), (0.72, 0.34)), ((0.42, 0.20), (0.70, 0.36))
AT_MOST = {ATTENTION: 0.25, LOG_SOFTMAX: 0.02}  # of both: what may grow tenfold, and fiftyfold, within a hundred steps
BY_ENERGY = 0.65  # of what is aimed at, where the budget is one of parameters: energies differ more from batch to batch
LOOSEN, LOOSEN_WITH_ATTENTION = 2.0, 4.0  # at most, from one measurement to the next; there rounds are farther apart
LOOSEN_TRIFLE = 2.0  # x that, where a site adds no more than ...
TRIFLE = 1 / 300  # ... of what is aimed at, in all and in every layer
SET_EVERY = 5  # steps, while some sites wait for their turn
ALARM = 1.2  # x what is aimed at: expected from here on, bounds are set anew at once
RECENT = 2.5  # x every: a site that sat out a round was measured less long ago than this
GONE = 5  # x every: a site that has not run for longer, in a layer frozen since, say, is new when it runs again
MUCH_COARSER, MANY_BYTES = 1.4, 0.1  # of a step, and of all bytes: what is worth a measurement before its time
NEARLY = 0.99  # x the coarsest that a site may have: from here on, that holds it back
SMALL = 1 / 500  # of all values: the smallest tensors, up to this much in all, are coded as finely as can be
LITTLE = 1 / 20  # of a layer's limit: below, an audit that finds many times what was expected says nothing
ONE_BATCH = 0.7  # weight of an audit among measurements, of which a few make one of all sites
FORGET = 0.5  # per round: what was known of a site that is exact now
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
        return {**foresight.start(), "sites": {}, "loads": {}, "broken": {}}

    def missing(self, state: State) -> set[str]:
        """Return what entries of sites lack, as those of earlier versions may."""
        return {key for entry in state["sites"].values() for key in sensitivity.KEYS - entry.keys()}

    def at(self, site: Site, state: State) -> Exact | Relative:
        entry = state["sites"].get(site_key(site))
        rel = self._first() if entry is None else entry["rel"]
        return Relative(rel) if rel else Exact()

    def wants(self, step: int, state: State) -> Request:
        sites = state["sites"]
        if not sites:  # originals of all sites at once would be the memory of a plain step
            return Request(gradients=None) if is_due(step, self.every) else NOTHING
        return turns.request(step, sites, self.every)

    def update(self, state: State, reading: Reading) -> State:
        known, step = state["sites"], reading.step
        parts = foresight.parts(state["parts"], reading)
        reading = replace(reading, layers={layer: part * reading.energy for layer, part in parts.items()})
        sites = {key: dict(entry) for key, entry in known.items()}
        for one in reading.sites:
            key = site_key(one.site)
            sites[key] = {**sensitivity.seen(sites.get(key), one, reading.energy), "last": step}
        sites = {key: entry for key, entry in sites.items() if not self._is_gone(entry, step)}
        state = foresight.learn(state, sites, reading, RECENT * self.every)
        energies = sensitivity.energies_of(reading, state["loads"])
        for error in reading.errors:
            sensitivity.measure(sites, error, reading, energies)
        turns.give(sites, known, reading, self.every, TRIFLE * self.e2)
        if is_due(step, self.every):
            _forget(sites)
        learnt = {"parts": parts, "sites": sites, "broken": {**state["broken"], **self._broken(reading)}}
        state = {**state, **learnt}
        is_later = (turns.some_are_due(sites, step) and step % SET_EVERY) or turns.is_look(step, known, self.every)
        if is_later and sites.keys() == known.keys():
            state["loads"] = sensitivity.moved(state["loads"], known, sites)
            if not self._is_alarming(state, step):
                return state
        sensitivity.fill_in(sites)
        state["loads"] = self._spend(sites, state, step)
        return state

    def noise(self, state: State) -> float | None:
        return foresight.correction(state) * state["loads"][ALL] if state["sites"] else None

    def audited(self, state: State, measured: float, layers: Mapping[str, float], step: int) -> State:
        """Learn from an audit how far expectation and truth are apart, in all and in each layer.

        `layers` are the errors of those that count, as `measured` is: shares of the whole gradient's energy.
        """
        expected = self.noise(state)
        if not expected or not 0.0 < measured < math.inf:
            return state
        shares = {layer: error / max(state["parts"].get(layer, 0.0), NEGLIGIBLE) for layer, error in layers.items()}
        limit, loads = self.cap * self.e2, state["loads"]
        broken = {layer: [step, share] for layer, share in shares.items() if share > limit}
        state = {**state, "broken": {**state["broken"], **broken}}
        state = foresight.put_to_test(state, foresight.WHOLE, measured / loads[ALL], ONE_BATCH, is_halfway=True)
        if limit < math.inf and sensitivity.is_complete(state["sites"]):
            for layer in filter(loads.__contains__, shares):  # in their order: sums over layers are to be reproducible
                ratio = (shares[layer] + LITTLE * limit) / (loads[layer] + LITTLE * limit)
                state = foresight.put_to_test(state, layer, ratio, ONE_BATCH, is_halfway=True)
        sites = {key: dict(entry) for key, entry in state["sites"].items()}
        return {**state, "loads": self._spend(sites, state, step), "sites": sites}

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
                f"{self!r}: in single batches errors of layers exceeded {self.cap * self.e2:.3g} of what their "
                f"gradients usually are, the limit over ten audits: {_few(state['broken'])}; "
                f"last {layer or 'the model'}, {share:.3g} at step {step}; "
                "more is expected there since"
            )
        return lines

    def _first(self, meant_for: float = START_MEANT_FOR) -> float:
        """Return the bound of a site that was never seen: noise goes with its square, so less for a smaller budget."""
        return START * min(1.0, math.sqrt(self.e2 / meant_for))

    def _most(self, sites: Sites, step: int) -> float:
        """Return the loosest bound that any site may have in this step."""
        first = self._first(WITH_ATTENTION) if turns.has_attention(sites) else self._first()
        return first if step < _young(sites) else math.inf

    def _is_gone(self, entry: State, step: int) -> bool:
        """Return whether a site has not run for so long that its share is for others; exact ones have none."""
        return entry["rel"] > 0 and step - entry["last"] > GONE * self.every

    def _broken(self, reading: Reading) -> dict[str, list[float]]:
        """Return the layers of which a measurement found an error above their limit."""
        energies = {layer: max(energy, NEGLIGIBLE * reading.energy) for layer, energy in reading.layers.items()}
        return {
            layer: [reading.step, value / energies[layer]]
            for error in reading.errors
            for layer, value in error.layers.items()
            if layer in energies and value > self.cap * self.e2 * energies[layer]
        }

    def _is_alarming(self, state: State, step: int) -> bool:
        loads = state["loads"]
        spent = sum(noise_of(entry) * entry["rel"] ** 2 for entry in state["sites"].values())
        aims = self._aims(loads, state, step)
        return spent > ALARM * self._aims([ALL], state, step)[0] or any(
            load > ALARM * aim for load, aim in zip(loads.values(), aims, strict=True)
        )

    def _aims(self, layers: Iterable[str], state: State, step: int) -> np.ndarray:
        """Return what is aimed at in each layer, before correction: a share of its gradient."""
        corrections = {**foresight.corrections(state, layers), ALL: foresight.correction(state)}
        new_and_later = AIMS_ATTENDING if turns.has_attention(state["sites"]) else AIMS
        of_all, of_layer = new_and_later[step >= NEW * self.every]
        aims = [(of_all if layer == ALL else of_layer * self.cap) / corrections[layer] for layer in layers]
        return self.e2 * np.array(aims)

    def _spend(self, sites: Sites, state: State, step: int) -> dict[str, float]:
        """Choose the bounds of all sites, in place, and return the noise that is then expected."""
        small = turns.smallest(sites, SMALL)
        keys = list(sites)
        unknown = {role: unknown_share(sites, role) for role in {entry["role"] for entry in sites.values()}}
        limits, budget = self._limits(sites, state, step), self._aims([ALL], state, step)[0]
        trifles, most = _trifles(sites, limits, budget), self._most(sites, step)
        is_attending = turns.has_attention(sites)
        loosen = LOOSEN_WITH_ATTENTION if is_attending else LOOSEN
        factors = {key: loosen * LOOSEN_TRIFLE if key in trifles else loosen for key in keys}
        items = [self._item(sites[key], key in small, factors[key], unknown[sites[key]["role"]], most) for key in keys]
        steps = cheapest(items, budget, limits)
        soon = [] if is_attending else _held_back(sites, small, items, steps, budget, limits)
        for key, chosen in zip(keys, steps, strict=True):
            entry = sites[key]
            rel = chosen / 2.0 / entry["unit"]
            if rel > entry["rel"]:
                entry["fresh"] = False
            if rel > loosen * entry["rel"]:  # a trifle, and soon no more where errors do not grow as its square
                soon.append(key)
            entry["rel"] = rel
        if not is_attending:  # there a look comes before the next round
            turns.hurry(sites, soon, step, self.every, foresight.YOUNG)
        return loads(sites)

    def _item(self, entry: State, is_small: bool, loosen: float, unknown: float, most: float) -> Item:
        unit, rel, finest = entry["unit"], entry["rel"], FINEST_STEP / 2.0 / entry["unit"]
        is_known = entry["own"]["n"] >= 2 if not entry["travels"] else _is_followed(entry)
        limit = min(most, max(rel * loosen if entry["fresh"] and is_known else rel, entry["tried"], finest))
        if not entry["own"]["n"] and unknown > 0:
            limit = min(limit, math.sqrt(self._aims([""], self.start(), 0)[0] / unknown))
        coarsest = FINEST_STEP if is_small else min(COARSEST_STEP, 2.0 * limit * unit)
        factor = factor_of(entry["curve"], 2.0 * max(entry["seen"], finest) * unit, entry["bits"])
        return Item(entry["numel"], entry["curve"], factor, noise_of(entry) / (2.0 * unit) ** 2, coarsest)

    def _limits(self, sites: Sites, state: State, step: int) -> np.ndarray:
        """Return one row per layer: what a step of 1 RMS at each site adds, as a share of what the layer may suffer.

        And for each of them, and the whole, one more of those sites which may take only a part of it.
        """
        layers, shares = shares_of(sites)
        aims = self._aims([*layers, ALL], state, step)
        aims[:-1] *= [BY_ENERGY if layer == ALL else 1.0 for layer in layers]
        whole = [noise_of(entry) for entry in sites.values()]
        steps = np.array([2.0 * entry["unit"] for entry in sites.values()])
        rows = np.vstack([shares, whole]) / steps**2 / aims[:, None]
        limited = [rows[:-1]]
        for roles, most in AT_MOST.items():
            are_ours = np.array([entry["role"] in roles for entry in sites.values()])
            limited += [rows * are_ours / most] if are_ours.any() else []
        return np.vstack(limited)


def _held_back(
    sites: Sites, small: set[str], items: Sequence[Item], steps: Sequence[float], budget: float, limits: np.ndarray
) -> list[str]:
    """Return the sites that would be much coarser but for want of a measurement; none where that keeps few bytes."""
    many = MANY_BYTES * sum(entry["numel"] * entry["bits"] for entry in sites.values())
    free = [
        item if key in small else replace(item, coarsest=COARSEST_STEP) for key, item in zip(sites, items, strict=True)
    ]
    most = [
        item.coarsest if now >= NEARLY * before.coarsest else now
        for item, before, now in zip(free, items, steps, strict=True)
    ]
    if sum(_gains(sites, free, steps, most).values()) <= many:  # as mostly; solving once more takes a while
        return []
    gains = _gains(sites, free, steps, cheapest(free, budget, limits))
    return list(gains) if sum(gains.values()) > many else []


def _gains(sites: Sites, items: Sequence[Item], steps: Sequence[float], wishes: Sequence[float]) -> dict[str, float]:
    """Return by site the bits that much coarser steps would save."""
    return {
        key: item.numel * item.factor * (bits(item.curve, now) - bits(item.curve, wish))
        for key, item, now, wish in zip(sites, items, steps, wishes, strict=True)
        if now and wish > MUCH_COARSER * now
    }


def _trifles(sites: Sites, limits: np.ndarray, budget: float) -> set[str]:
    """Return the sites that add next to nothing, to the whole and to any layer."""
    used = (limits * [(2.0 * entry["rel"] * entry["unit"]) ** 2 for entry in sites.values()]).max(axis=0, initial=0.0)
    return {
        key
        for (key, entry), most in zip(sites.items(), used, strict=True)
        if max(most, noise_of(entry) * entry["rel"] ** 2 / budget) < TRIFLE
    }


def _young(sites: Sites) -> int:
    """Return the step from which on bounds are loosened."""
    return YOUNG_WITH_ATTENTION if turns.has_attention(sites) else foresight.YOUNG


def _forget(sites: Sites) -> None:
    for entry in sites.values():
        if not entry["rel"]:
            entry |= {part: sensitivity.scaled(entry[part], FORGET) for part in PARTS}


def _is_followed(entry: State) -> bool:
    """Return whether an error that travels was followed, and measured twice near by at least."""
    return entry["far"]["n"] >= 1 and max(entry["far"]["n"], entry["near"]["n"]) >= 2


def _few(names: Iterable[str]) -> str:
    known = list(dict.fromkeys(name or "the model" for name in names))
    return ", ".join(known[:3]) + (f" and {len(known) - 3} more" if len(known) > 3 else "")
