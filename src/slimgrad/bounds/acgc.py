"""AC-GC's bound: no layer's gradient is off by more than e2 of its energy, whatever the errors are.

A convolution or linear layer with input x, by Cauchy and Schwarz (acgc_formulas.py has all forms):

    ||d gW||^2 <= dx^2 * numel(x) * u ||gY||^2         u = taps / stride, how many windows see a value of x
    dx^2 = e2 * sum ||gW||^2 / (numel(x) * sum u ||gY||^2)         sums over all layers that read x

For batch norm the authors have a heuristic that errors can exceed. `sound=True` puts a bound in its place that they
cannot. `expected=True` takes errors as independent, which gives the worst case up and makes a convolution's bound about
sqrt(3 * N * P * Q) times coarser, for N samples and P x Q output positions.

Statistics are taken every `every` steps. Numerators and denominators are averaged apart over the last ten; `sound`
takes the strictest of the last ten bounds instead, because a mean bounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slimgrad.bounds import acgc_formulas as formulas
from slimgrad.bounds.base import NOTHING, Reader, Reading, Request, Site, SiteReading, State, is_due, site_key
from slimgrad.bounds.covered import ROLES, Covered, PerChannel, is_finite, word_of
from slimgrad.bounds.fixed import Absolute, Exact, Relative
from slimgrad.errors import ConfigError

START = Relative(0.25)  # before the first statistics
LAST = 10  # readings that count
COARSEST = 2.0  # of a bound relative to the RMS: beyond, nothing gets smaller


@dataclass(frozen=True, slots=True)
class AcGc:
    """AC-GC's adaptive bound for the inputs of convolutions, linear layers and batch norms; all else stays exact."""

    e2: float = 0.5
    every: int = 100
    expected: bool = False
    sound: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.e2, bool) or not isinstance(self.e2, (int, float)) or not 0 < self.e2 < math.inf:
            raise ConfigError(f"AcGc expected e2 to be a positive finite number, got {self.e2!r}; write AcGc(e2=0.5)")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(
                f"AcGc expected every to be a number of steps from 1, got {self.every!r}; write AcGc(every=100)"
            )
        for name in ("expected", "sound"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"AcGc expected {name}=True or {name}=False, got {getattr(self, name)!r}")
        if self.expected and self.sound:
            raise ConfigError(
                "AcGc expected one of expected=True, for errors as they usually are, and sound=True, for any errors, "
                "got both; write AcGc(expected=True) or AcGc(sound=True)"
            )

    def start(self) -> State:
        return {"sites": {}}

    def at(self, site: Site, state: State) -> Covered:
        """Return the bound for what is saved here: that of the last statistics, or the one that runs start with."""
        entry = state["sites"].get(site_key(site))
        return Covered(START if entry is None else _fixed(entry["bound"]), tuple(ROLES))

    def wants(self, step: int, state: State) -> Request:
        return Request(gradients=None) if is_due(step, self.every) else NOTHING

    def update(self, state: State, reading: Reading) -> State:
        """Return the state with one more record per site, and the bounds that follow from the last ten."""
        sites = dict(state["sites"])
        for measured in reading.sites:
            words = [word_of(reader) for reader in measured.readers]
            if not any(words) or not all(map(is_finite, measured.readers)):
                continue
            key = site_key(measured.site)
            if None in words or _n_norms(measured.readers) > 1:  # it is read where no formula bounds the error
                sites[key] = {"records": [], "bound": {"eps": 0.0}}
                continue
            records = [*(sites[key]["records"] if key in sites else ()), *self._records(measured)][-LAST:]
            bound = self._bound(records)
            if _fixed(bound) != Exact():  # a layer without a gradient says nothing, and exact tensors are not measured
                sites[key] = {"records": records, "bound": bound}
        return {"sites": sites}

    def noise(self, state: State) -> float | None:
        return self.e2

    def _records(self, measured: SiteReading) -> list[State]:
        """Return what is kept of one reading: terms to average, or with `sound` bounds to take the strictest of.

        There are several where a norm was called several times: each call had a tensor of its own.
        """
        layers = [reader for reader in measured.readers if reader.norm is None]
        norms = [reader for reader in measured.readers if reader.norm is not None]
        own = self._of_layers(layers, measured.numel)
        return [{**own, **self._of_norm(reader)} for reader in norms] or [own]

    def _of_layers(self, layers: Sequence[Reader], numel: int) -> State:
        if not layers:
            return {}
        if self.sound:
            return {"eps": formulas.layer_bound(formulas.sound_terms(layers, numel), self.e2)}
        terms = formulas.expected_terms(layers) if self.expected else formulas.published_terms(layers, numel)
        return {"layers": terms}

    def _of_norm(self, reader: Reader) -> State:
        assert reader.norm is not None
        values, energies = reader.batch * reader.places, (reader.out_grad2, reader.in_grad2)
        if self.sound:
            return {"channels": formulas.sound_norm_bound(reader.norm, values, *energies, self.e2)}
        if self.expected:
            return {"norm": formulas.expected_norm_terms(reader.norm, values, *energies)}
        return {"norm": formulas.published_norm_terms(reader.norm, values, reader.in_grad2)}

    def _bound(self, records: Sequence[State]) -> State:
        """Return eps, eps per channel, or rel: whatever _fixed makes a bound of."""
        alike = [record for record in records if _shape(record) == _shape(records[-1])]
        if self.sound:
            bound = _combined(alike, min)
        else:
            terms, bound = _combined(alike, _mean), {}
            if "layers" in terms:
                bound["eps"] = formulas.layer_bound(terms["layers"], self.e2)
            if "norm" in terms and self.expected:
                bound["rel"] = min(formulas.expected_norm_rel(terms["norm"], self.e2), COARSEST)
                bound["channels"] = [bound["rel"] * std for std in terms["norm"]["stds"]]
            elif "norm" in terms:
                bound["channels"] = formulas.published_norm_bound(terms["norm"], self.e2)
        if "eps" in bound and "channels" in bound:
            return {"channels": [min(bound["eps"], eps) for eps in bound["channels"]]}
        return {"rel": bound["rel"]} if "rel" in bound else bound


def _fixed(bound: Mapping[str, Any]) -> Exact | Absolute | Relative | PerChannel:
    if "rel" in bound:
        return Relative(bound["rel"]) if bound["rel"] > 0 else Exact()
    if "channels" in bound:
        return PerChannel(tuple(bound["channels"])) if min(bound["channels"]) > 0 else Exact()
    return Absolute(bound["eps"]) if bound["eps"] > 0 else Exact()


def _combined(records: Sequence[Any], how: Any) -> Any:
    """Return the records as one, `how` applied to every number in them."""
    first = records[0]
    if isinstance(first, Mapping):
        return {key: _combined([record[key] for record in records], how) for key in first}
    if isinstance(first, list):
        return [how(column) for column in zip(*records, strict=True)]
    return how(records)


def _shape(record: Any) -> Any:
    """Return what records that can be combined have in common; an instance norm has channels per example."""
    if isinstance(record, Mapping):
        return {key: _shape(value) for key, value in record.items()}
    return len(record) if isinstance(record, list) else None


def _n_norms(readers: Sequence[Reader]) -> int:
    """Return how many norms there are among the readers, calls of the same one counted once where its weight tells."""
    weights = [reader.weight for reader in readers if reader.norm is not None]
    return weights.count("") + len({weight for weight in weights if weight})


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
