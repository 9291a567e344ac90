"""COMET's bound: the error of a weight's gradient is at most a hundredth of the weight's momentum.

    sigma = fraction * mean |momentum|              the standard deviation that the weight's gradient may have
    eb    = sigma / (a * L * sqrt(N * R))           the error allowed in what the layer saved

with L the mean over samples of max |gY|, N samples and a share R of non-zero values; a = 0.32 is the authors' fit. It
holds where one value per sample dominates gY. `exact=True` puts the real standard deviation of that error in its place,
which needs no fit (docs/bounds_published.md):

    eb    = sigma / sqrt(R * ||gY||^2 / (3 K))      K output channels; errors uniform in [-eb, eb] and independent

Statistics are taken every `window` steps and drive the steps up to the next; the window is halved while bounds move.

Note [Momentum]. What the optimizer holds (momentum.py). Where it holds none, a running mean (beta = 0.9) of mean |gW|
over the readings takes its place: no copy of the weights is kept for it. Momentum of SGD adds gradients up, so this is
2 to 10 times smaller, and the bounds with it.

Note [After the warm-up]. Statistics exist only of tensors that are coded with an error, and in a warm-up there are
none. Its last step therefore ends it and finds nothing, and one more step, coded as every run starts, is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from slimgrad.bounds.base import FIRST_STEPS, NOTHING, Reader, Reading, Request, Site, SiteReading, State, site_key
from slimgrad.bounds.covered import LARGEST, Covered, check_words, is_finite, word_of
from slimgrad.bounds.fixed import Absolute, Exact, Relative
from slimgrad.errors import ConfigError

START = Relative(0.25)  # before the first statistics, unless there is a warm-up
SETTLED = 2.0  # a bound that changes by more than this factor across a period halves the window
SHORTEST_WINDOW = 10  # the authors name no end to halving; below this, statistics would be most of the work
BETA = 0.9  # of the momentum that stands in where the optimizer has none


@dataclass(frozen=True, slots=True)
class Comet:
    """COMET's adaptive bound; `layers` names what it covers, everything else stays exact.

    The authors compress inputs of convolutions only. They train uncompressed for the first 1000 steps, which is
    warmup=1000; without it those steps run under Relative(0.25) and statistics begin at step 1.
    """

    needs_optimizer: ClassVar[bool] = True  # sessions refuse this bound without optimizer=

    fraction: float = 0.01
    a: float = 0.32
    window: int = 1000
    warmup: int = 0
    exact: bool = False
    layers: str | tuple[str, ...] = "conv"

    def __post_init__(self) -> None:
        _check_positive("fraction", self.fraction, "Comet(fraction=0.01)")
        _check_positive("a", self.a, "Comet(a=0.32)")
        _check_count("window", self.window, 1, "Comet(window=1000)")
        _check_count("warmup", self.warmup, 0, "Comet(warmup=1000), or warmup=0 for none")
        if not isinstance(self.exact, bool):
            raise ConfigError(f"Comet expected exact=True or exact=False, got {self.exact!r}")
        check_words("Comet", self.layers)

    @property
    def _words(self) -> tuple[str, ...]:
        return (self.layers,) if isinstance(self.layers, str) else self.layers

    def start(self) -> State:
        return {"is_warm": self.warmup == 0, "window": self.window, "due": max(1, self.warmup), "sites": {}}

    def at(self, site: Site, state: State) -> Covered:
        """Return the bound for what is saved here: that of the last statistics, or the one that runs start with."""
        entry = state["sites"].get(site_key(site))
        if entry is None:
            bound = START if state["is_warm"] else Exact()
        else:
            bound = Absolute(entry["eps"]) if entry["eps"] > 0 else Exact()
        return Covered(bound, self._words)

    def wants(self, step: int, state: State) -> Request:
        return Request(gradients=None) if step >= state["due"] else NOTHING

    def update(self, state: State, reading: Reading) -> State:
        """Return the state with the bounds that follow from this step, and with the step of the next statistics."""
        sites, change = dict(state["sites"]), 1.0
        for measured in reading.sites:
            key = site_key(measured.site)
            entry = self._entry(sites.get(key), measured, reading.scale)
            if entry is not None:
                change = max(change, _change(sites.get(key), entry))
                sites[key] = entry
        window = state["window"]
        early = [step for step in FIRST_STEPS if reading.step < step < self.window and not self.warmup]
        if not sites:
            due = reading.step + 1  # Note [After the warm-up]
        elif early:
            due = early[0]
        else:
            window = _next_window(window, self.window, change)
            due = reading.step + window
        return {"is_warm": True, "window": window, "due": due, "sites": sites}

    def noise(self, state: State) -> float | None:
        return None  # the promise is about single weights and their momentum, not about the gradient's energy

    def _entry(self, old: State | None, measured: SiteReading, scale: float) -> State | None:
        """Return what is known of a site after these readers; None where they say nothing, as without a gradient."""
        covered = [word_of(reader) in self._words for reader in measured.readers]
        if not any(covered) or not all(map(is_finite, measured.readers)):
            return None
        if not all(covered):
            return {"eps": 0.0, "means": {}}  # somebody else reads it too, whose error no formula bounds
        means = dict(old["means"]) if old else {}
        bounds = []
        for reader in measured.readers:
            momentum = reader.momentum
            if momentum is None:
                means[reader.weight] = _running(means.get(reader.weight), reader.weight_grad_abs / scale)
                momentum = _mean(means[reader.weight])
            gain = self._gain(reader, measured.density) / scale
            bounds.append(self.fraction * momentum / gain if gain > 0 else math.nan)
        is_usable = all(math.isfinite(eps) and eps > 0 for eps in bounds)
        return {"eps": min(*bounds, LARGEST), "means": means} if is_usable else None

    def _gain(self, reader: Reader, density: float) -> float:
        """Return the standard deviation of the weight gradient's error per unit of eb."""
        share = density if reader.norm is None else 1.0  # what is centred loses its zeros
        if self.exact:
            return spread(reader) * exact_gain(reader.out_grad2, reader.out_channels, share * reader.overlap)
        return spread(reader) * published_gain(reader.out_grad_peak, reader.batch, share, self.a)


def published_gain(peak: float, batch: int, density: float, a: float = 0.32) -> float:
    """Return COMET's sigma per unit of eb, from the mean over samples of max |gY|."""
    return a * peak * math.sqrt(batch * density)


def exact_gain(out_grad2: float, out_channels: int, density: float) -> float:
    """Return the root mean square over a weight's gradient of its error, per unit of eb, for independent errors."""
    return math.sqrt(density * out_grad2 / (3 * out_channels)) if out_channels else 0.0


def spread(reader: Reader) -> float:
    """Return by how much a reader differs from the convolution of the paper, as a factor on the error.

    A norm divides its input by the standard deviation first. A transposed convolution meets each value of gY with only
    taps / stride of its taps, where a plain one meets it with all.
    """
    if reader.norm is not None:
        return math.sqrt(sum(s * s for s in reader.norm.inv_std) / len(reader.norm.inv_std))
    return reader.stride**-0.5 if "transpose" in reader.function else 1.0


def _change(old: State | None, new: State) -> float:
    """Return the factor between two bounds of one site."""
    if old is None or old["eps"] == new["eps"]:
        return 1.0
    low, high = sorted((old["eps"], new["eps"]))
    return high / low if low > 0 else math.inf


def _next_window(window: int, longest: int, change: float) -> int:
    """Return half of the window if bounds moved in it, at once the longest when they did not."""
    return max(min(SHORTEST_WINDOW, longest), window // 2) if change > SETTLED else longest


def _running(mean: list[float] | None, value: float) -> list[float]:
    """Return the running mean with one more value, as (weighted sum, number of values)."""
    total, count = mean or (0.0, 0)
    return [BETA * total + (1 - BETA) * value, count + 1]


def _mean(running: list[float]) -> float:
    total, count = running
    return total / (1 - BETA**count) if count else 0.0


def _check_positive(name: str, value: object, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"Comet expected {name} to be a positive finite number, got {value!r}; write {example}")


def _check_count(name: str, value: object, lowest: int, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError(f"Comet expected {name} to be a whole number from {lowest}, got {value!r}; write {example}")
