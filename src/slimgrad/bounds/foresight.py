"""How what is measured compares with what was expected of it.

    foresight.parts(state["parts"], reading)                    what each layer's part of the gradient usually is
    state = foresight.learn(state, sites, reading, recent)      before sensitivity.measure learns from the reading
    foresight.corrections(state, layers)                        by what to multiply what is expected of each layer
    foresight.correction(state)                                 and of the whole

Of the state of Noise these parts are kept here:

    parts         by layer, what part of the gradient's energy it holds, usually; see Note [Parts]
    calibration   measured / expected noise of the whole gradient, a slow mean
    ratios        by layer, the same of its own gradient; see Note [Foresight]

Note [Foresight]. A site is measured again when its figures are already in use, so each measurement is a test of them
that they have not seen. On average it finds more than was expected, for two reasons: errors grow against gradients
while a task is learnt, and a budget that is spent where noise seems cheap is spent where it was underestimated. Both go
on, so the mean of what was found beside what was expected corrects what is expected next. Right after a measurement
figures are right, and they are off by that much only when the next one comes: in between by its root, and so far
everything is corrected, since what is promised is promised of means over many steps. What a young network did says
nothing of it later: a GPT's errors grow a hundredfold between steps 5 and 25.

Note [Parts]. An error is compared with what a layer's gradient usually is, its part of the whole gradient of this
batch, and not with what it happens to be. The gradient of a layer with few parameters cancels out in some batches and
its error does not: docs/decisions/0007 has a batch of a MobileNet in which one batch norm's error is 0.5 of its
gradient and 0.05 of what that usually is. Only exact values could keep the first down, and training, which adds up
gradients of many batches, has no use for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from slimgrad.bounds.base import ErrorReading, Reading, State, site_key
from slimgrad.bounds.sensitivity import Sites, energies_of, noise_and_shares, noise_of, reaches_of

LEARN_PART, LEARN_CALIBRATION, LEARN_RATIO = 0.3, 0.3, 0.4  # weights of a new measurement
LEAST_RATIO, MOST_RATIO = 0.25, 10.0  # measured / expected of a layer: one surprise counts as no more than this ...
MOST_OF_ALL = 4.0  # ... and of the whole as no more than this
START_RATIO = 1.1  # of the whole as of layers
YOUNG = 20  # steps: before, no bound is loosened, and measurements from before say nothing of later ones
POOLED = 0.5  # of what is said of a layer: the mean of all layers, for few measurements say little about one
WHOLE = "**"  # the noise that the budget is about, among the layers


def start() -> State:
    """Return what is known before anything was measured."""
    return {"parts": {}, "calibration": START_RATIO, "ratios": {}}


def parts(known: Mapping[str, float], reading: Reading) -> dict[str, float]:
    """Return by layer what part of the gradient's energy it usually holds; see Note [Parts]."""
    now = {layer: energy / reading.energy for layer, energy in reading.layers.items()}
    learnt = {
        layer: known[layer] + LEARN_PART * (part - known[layer]) if layer in known else part
        for layer, part in now.items()
    }
    return {**known, **learnt}


def learn(state: State, sites: Sites, reading: Reading, recent: float) -> State:
    """Return the state with what the reading says about what was expected.

    Measurements more than `recent` steps apart say how the network has changed, and not how well it is foreseen.
    """
    measured, foreseen = _compared(state["loads"], sites, reading, recent)
    wholes = {**state["loads"], WHOLE: sum(noise_of(entry) * entry["rel"] ** 2 for entry in sites.values())}
    for layer, before in foreseen.items():
        weight = min(1.0, max(measured[layer], before) / (wholes.get(layer) or math.inf))
        state = put_to_test(state, layer, measured[layer] / before, weight)
    return state


def put_to_test(state: State, layer: str, ratio: float, weight: float = 1.0, is_halfway: bool = False) -> State:
    """Return the state after so many times what was expected was found in a layer, or in the whole.

    `weight` is the share that was measured: what is found in little of what a layer gets says little. What audits find,
    between two measurements, they find about halfway.
    """
    ratio = min(MOST_OF_ALL if layer == WHOLE else MOST_RATIO, max(LEAST_RATIO, ratio))
    ratio = ratio**2 if is_halfway else ratio
    if layer == WHOLE:
        known = state["calibration"]
        return {**state, "calibration": known + LEARN_CALIBRATION * weight * (ratio - known)}
    known = state["ratios"].get(layer, START_RATIO)
    return {**state, "ratios": {**state["ratios"], layer: known + LEARN_RATIO * weight * (ratio - known)}}


def correction(state: State) -> float:
    """Return measured / expected to reckon with in the whole, until the next measurement; see Note [Foresight]."""
    return math.sqrt(state["calibration"])


def corrections(state: State, layers: Iterable[str]) -> dict[str, float]:
    """Return the same for each layer."""
    known = state["ratios"]
    mean = sum(known.values()) / len(known) if known else START_RATIO
    return {layer: math.sqrt((1.0 - POOLED) * known.get(layer, START_RATIO) + POOLED * mean) for layer in layers}


def _compared(
    expected: Mapping[str, float], sites: Sites, reading: Reading, recent: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what was measured in each layer and in the whole, and what was expected of the same sites."""
    measured: dict[str, float] = {}
    foreseen: dict[str, float] = {}
    energies = energies_of(reading, expected)
    for error in reading.errors:
        entries = [sites[key] for key in map(site_key, error.sites) if key in sites]
        known = [(entry[part], entry["seen"] ** 2) for entry in entries for part in reaches_of(entry, error.reach)]
        if not all(_is_recent(part, reading.step, recent) for part, _ in known):
            continue
        before = _expected_of(known)
        for layer, share in _found(error, reading, energies).items():
            if before.get(layer, 0.0) > 0:
                measured[layer] = measured.get(layer, 0.0) + share
                foreseen[layer] = foreseen.get(layer, 0.0) + before[layer]
    return measured, foreseen


def _is_recent(part: State, step: int, recent: float) -> bool:
    """Return whether a measurement still speaks of this network."""
    return part["n"] > 0 and part["at"] >= YOUNG and step - part["at"] <= recent


def _found(error: ErrorReading, reading: Reading, energies: Mapping[str, float]) -> dict[str, float]:
    noise, shares = noise_and_shares(error, reading, energies)
    return shares if error.reach == "near" else {**shares, WHOLE: noise}  # what is near is part of what is far


def _expected_of(known: Iterable[tuple[State, float]]) -> dict[str, float]:
    """Return what parts of sites, each at the square of its bound, are known to add to each layer and to the whole."""
    sums = {WHOLE: 0.0}
    for part, rel2 in known:
        sums[WHOLE] += part["noise"] * rel2
        for layer, share in part["shares"].items():
            sums[layer] = sums.get(layer, 0.0) + share * rel2
    return sums
