"""The formulas of AC-GC and what we put beside them, as functions of what a layer's backward saw. No state, no steps.

Each form comes in two parts: `*_terms` are numbers that may be averaged over steps, `*_bound` is what they allow. A
bound is one eps for convolutions and linear layers, and one per channel for batch norm. docs/bounds_published.md has
the derivations.

    published    the authors' worst case for convolutions and linear layers; their heuristic for batch norm
    sound        a worst case for all of them: no errors within the bound exceed the promise
    expected     rounding errors taken as independent and uniform: the promise holds on average

Note [Batch norm]. With M values per channel, s = 1/std, xh = (x - mean) s, and G = sum gZ xh, the gradient of gamma,
backward computes gX = gamma s (gZ - mean gZ - xh G / M) from the saved x. An error d of x changes G by
dG = s sum gZ d and gX by -gamma s / M * (xh dG + s d G + s d dG). Where |d| <= dx, t = s dx and A = sum |gZ|:

    |dG| <= t A          ||d gX|| <= |gamma| s / sqrt(M) * t (A (1 + t) + |G|)          since ||xh|| <= sqrt(M)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from slimgrad.bounds.base import NormChannels, Reader
from slimgrad.bounds.covered import LARGEST

FLOOR = 1e-16  # of both sums of a layer, and of a batch norm's denominators
NORM_FLOOR2 = 2.0**-16  # of dx^2 at a batch norm


class LayerTerms(TypedDict):
    """dx^2 = e2 * weight2 / out2, where both are sums over all layers that read the tensor."""

    weight2: float  # ||gW||^2
    out2: float  # ||gY||^2 times what multiplies it


class PublishedNorm(TypedDict):
    in2: float  # ||gX||^2 M / C
    per_channel: list[float]  # gamma^2 s^4 (a + G^2)


class ExpectedNorm(TypedDict):
    gamma2: float  # ||gamma's gradient||^2
    out2: float  # ||gZ||^2
    in2: float  # ||gX||^2
    direct: float  # what errors of x add to gX, per unit of t^2 ...
    through: float  # ... and through the square of gamma's gradient
    stds: list[float]


def published_terms(readers: Sequence[Reader], numel: int) -> LayerTerms:
    """||d gW||^2 <= dx^2 numel u ||gY||^2, u = taps / stride: how many windows see a value of x, on average.

    The authors refuse groups. Each of them is a convolution of its own, with its part of x and of gY.
    """
    out2 = sum(reader.taps / (reader.stride * reader.groups) * reader.out_grad2 for reader in readers)
    return {"weight2": max(_weight2(readers), FLOOR), "out2": numel * max(out2, FLOOR)}


def sound_terms(readers: Sequence[Reader], numel: int) -> LayerTerms:
    """The same with u large enough at any size: published, a stride of 2 over 7 values counts 3.5 of 4."""
    out2 = sum(_products(reader, numel) / reader.groups * reader.out_grad2 for reader in readers)
    return {"weight2": _weight2(readers), "out2": out2}


def expected_terms(readers: Sequence[Reader]) -> LayerTerms:
    """E ||d gW||^2 = dx^2 / 3 * C * taps * ||gY||^2, with the C channels that one kernel sees."""
    out2 = sum(
        reader.in_channels / reader.groups * reader.taps / _strides_of_outputs(reader) * reader.out_grad2
        for reader in readers
    )
    return {"weight2": max(3 * _weight2(readers), FLOOR), "out2": max(out2, FLOOR)}


def layer_bound(terms: LayerTerms, e2: float) -> float:
    """Return eps; nothing is bounded where no gradient came."""
    if terms["out2"] <= 0:
        return LARGEST
    return min(math.sqrt(e2 * terms["weight2"] / terms["out2"]), LARGEST)


def published_norm_terms(norm: NormChannels, values: int, in_grad2: float) -> PublishedNorm:
    """Return the terms of the heuristic, which guesses sum (xh dG)^2 from max |x|; `values` is M."""
    per_channel = []
    for k, s in enumerate(norm.inv_std):
        guess = s * norm.n_grads[k] * norm.peak_grad[k] * norm.peak_input[k] / 2
        per_channel.append(norm.weight[k] ** 2 * s**4 * (guess**2 + norm.weight_grad[k] ** 2))
    return {"in2": in_grad2 * values / len(norm.inv_std), "per_channel": per_channel}


def published_norm_bound(terms: PublishedNorm, e2: float) -> list[float]:
    """Return eps per channel. The authors' e has no factor 1/2 here, where it has one for convolutions: e = 2 e2."""
    squares = [2 * e2 * terms["in2"] / max(term, FLOOR) for term in terms["per_channel"]]
    return [min(math.sqrt(max(square, NORM_FLOOR2)), LARGEST) for square in squares]


def sound_norm_bound(norm: NormChannels, values: int, out_grad2: float, in_grad2: float, e2: float) -> list[float]:
    """Return eps per channel that keeps ||d gX||^2 <= e2 ||gX||^2 and |d G|^2 <= e2 |G|^2, sums over channels.

    See Note [Batch norm]. Every channel gets an equal share of both, and A is at most nnz max |gZ| and at most
    sqrt(nnz ||gZ||^2). A norm without gamma's gradient is bounded by gX alone, one behind frozen layers by gamma's.
    """
    channels = len(norm.inv_std)
    gamma2 = sum(g * g for g in norm.weight_grad)
    bounds = []
    for k, s in enumerate(norm.inv_std):
        count = norm.n_grads[k]
        total = min(count * norm.peak_grad[k], math.sqrt(count * out_grad2))
        own = abs(norm.weight_grad[k])
        reach = math.sqrt(e2 * in_grad2 * values / channels)  # t (A (1 + t) + |G|) |gamma| s <= reach
        t = math.inf if in_grad2 > 0 or gamma2 > 0 or total == 0 else 0.0
        if in_grad2 > 0 and norm.weight[k]:
            t = _positive_root(total, total + own, reach / (abs(norm.weight[k]) * s))
        if gamma2 > 0 and total > 0:
            t = min(t, math.sqrt(e2 * gamma2 / channels) / total)
        bounds.append(min(t / s, LARGEST))
    return bounds


def expected_norm_terms(norm: NormChannels, values: int, out_grad2: float, in_grad2: float) -> ExpectedNorm:
    """Return the terms of E||d G||^2 = t^2 ||gZ||^2 / 3 and of E||d gX||^2, for steps of t standard deviations.

    ||gZ||^2 of a channel is not measured; channels share the whole in proportion to nnz max(gZ)^2.
    """
    weights = [n * peak * peak for n, peak in zip(norm.n_grads, norm.peak_grad, strict=True)]
    per_weight = out_grad2 / sum(weights) if sum(weights) > 0 else 0.0
    direct = through = 0.0
    for k, s in enumerate(norm.inv_std):
        factor = (norm.weight[k] * s) ** 2 / values
        through += factor * weights[k] * per_weight
        direct += factor * norm.weight_grad[k] ** 2 * (1 + 2 / values)
    return {
        "gamma2": sum(g * g for g in norm.weight_grad),
        "out2": out_grad2,
        "in2": in_grad2,
        "direct": direct + through,
        "through": through,
        "stds": [1 / s for s in norm.inv_std],
    }


def expected_norm_rel(terms: ExpectedNorm, e2: float) -> float:
    """Return eps in standard deviations of the channel, the same for all channels."""
    variance = math.inf if terms["gamma2"] > 0 or terms["out2"] == 0 else 0.0  # of s d; 1/3 of eps^2
    if terms["in2"] > 0:  # and no frozen layer before, which needs no gX
        variance = _positive_root(terms["through"], terms["direct"], e2 * terms["in2"])
    if terms["gamma2"] > 0 and terms["out2"] > 0:
        variance = min(variance, e2 * terms["gamma2"] / terms["out2"])
    return min(math.sqrt(3 * variance), LARGEST)


def _weight2(readers: Sequence[Reader]) -> float:
    return sum(reader.weight_grad2 for reader in readers)


def _products(reader: Reader, numel: int) -> float:
    """Return how many times values of x are read, over all taps; for a transposed convolution, at most that.

    A plain one reads a value per sample, channel, output position and tap, unless it lies on the padding.
    """
    if "transpose" in reader.function:
        return numel * reader.taps
    return reader.taps * min(float(numel), reader.overlap * reader.batch * reader.in_channels * reader.places)


def _strides_of_outputs(reader: Reader) -> int:
    return reader.stride if "transpose" in reader.function else 1  # a tap meets one output in `stride`


def _positive_root(square: float, linear: float, constant: float) -> float:
    """Return the largest x with square x^2 + linear x <= constant, all of them >= 0; infinite where any x does."""
    if linear <= 0 and square <= 0:
        return math.inf
    return 2 * constant / (linear + math.sqrt(linear * linear + 4 * square * constant))
