"""Expected energy of gradient errors when rounding errors are independent: one function per kind of layer.

Rounding to a step D leaves an error of variance D^2 / 12 = eps^2 / 3. Each function here takes such a variance and what
is known of the gradients, and returns the expected sum of squares of the error of one gradient; docs/bounds.md derives
them. They are starting values: rounding errors of smooth maps are not independent, so a run measures (measure.py), and
for norms, activations and attention they say how large an error leaves the layer, not what becomes of it further on.

    local        conv, linear, norm_weight                         the layer's own weight
    passed on    norm_input, curved, softmax, log_softmax          the gradient that goes on to earlier layers
                 Attention

Zeros and the bias: exact zeros have no error, so `density` multiplies the variance; the gradient of a layer's bias does
not use x at all. A mean error m of all values, which dither would remove, adds `conv_mean`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from slimgrad.bounds.base import Reader


def variance(eps: float) -> float:
    """Return the variance of a rounding error that is uniform in [-eps, eps]."""
    return eps * eps / 3.0


def overlap(
    inner: Sequence[int],
    outer: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool = False,
) -> float:
    """Return the share of (tap, output position) pairs of a convolution that meet the input and not its padding.

    Sizes per dimension: `inner` of the input, `outer` of the output. A transposed convolution meets every output
    position at most once per tap and only where the stride leads; the share is then of the same number of pairs.
    """
    share = 1.0
    for dim in zip(inner, outer, kernel, stride, padding, dilation, strict=True):
        n_in, n_out, n_taps, step, pad, spread = dim
        near, far = (n_in, n_out) if is_transposed else (n_out, n_in)  # positions that step, positions that are met
        met = 0
        for tap in range(n_taps):
            offset = tap * spread - pad  # position `i` meets `i * step + offset`
            first = max(0, -(offset // step))
            last = min(near - 1, (far - 1 - offset) // step)
            met += max(0, last - first + 1)
        share *= met / (n_taps * n_out)
    return share


def conv(reader: Reader, var: float, density: float = 1.0) -> float:
    """Return E ||d gW||^2 of a convolution of any kind, or of a linear layer."""
    fan = reader.in_channels / reader.groups * reader.taps * reader.overlap
    return var * density * fan * reader.out_grad2


def conv_mean(reader: Reader, mean: float, bias_grad2: float) -> float:
    """Return what a mean error of all values adds to that; bias_grad2 is ||sum of gY over samples and places||^2."""
    fan = reader.in_channels / reader.groups * reader.taps * reader.overlap**2
    return mean * mean * fan * bias_grad2


def norm_weight(var: torch.Tensor, inv_std: torch.Tensor, out_grad2: torch.Tensor) -> float:
    """Return E ||d ggamma||^2; arguments per normalised set (channel, row or group), out_grad2 = ||gY||^2."""
    return float((var * inv_std.square() * out_grad2).sum())


def norm_input(
    var: torch.Tensor, inv_std: torch.Tensor, scaled_grad2: torch.Tensor, dot: torch.Tensor, n: int
) -> float:
    """Return E ||d gX||^2 of batch, layer, group or RMS norm, over sets of n values that share a mean and a variance.

    Per set: h = gamma * gY, scaled_grad2 = ||h||^2, dot = sum of h * xhat; mean and inverse deviation are exact.
    """
    return float((var * inv_std**4 * (scaled_grad2 + (1.0 + 2.0 / n) * dot.square()) / n).sum())


CURVATURES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x: functional.gelu(x),
    "silu": lambda x: functional.silu(x),
}


def curvature(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return the second derivative of an activation function at x."""
    x = x.detach().double().requires_grad_()
    with torch.enable_grad():
        (first,) = torch.autograd.grad(CURVATURES[name](x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
    return second


def curved(var: float, out_grad: torch.Tensor, second: torch.Tensor) -> float:
    """Return E ||d gX||^2 of y = f(x), for steps small against the scale on which f'' changes."""
    return var * float((out_grad.double() * second.double()).square().sum())


def softmax(var: float, out_grad: torch.Tensor, result: torch.Tensor) -> float:
    """Return E ||d gX||^2 of softmax over the last dimension, of which the result is stored."""
    g, y = out_grad.double(), result.double()
    centred = g - (g * y).sum(-1, keepdim=True)
    per_value = centred.square() + y.square() * g.square().sum(-1, keepdim=True) - 2.0 * centred * y * g
    return var * float(per_value.sum())


def log_softmax(var: float, out_grad: torch.Tensor, result: torch.Tensor) -> float:
    """Return E ||d gX||^2 of log-softmax over the last dimension, of which the result is stored."""
    total = out_grad.double().sum(-1, keepdim=True)
    return var * float((result.double().exp() * total).square().sum())


class AttentionErrors(NamedTuple):
    """Expected energies of the errors of the gradients of query, key and value."""

    query: float
    key: float
    value: float


class Attention:
    """softmax(scale q k^T) v, of which q, k, v, the result and the logarithm of the weights' sums are stored.

    The last is exact, so an error of q or k multiplies a weight by 1 + scale (dq k + q dk); all to first order.
    Names: p the weights, g the gradient of the result, slope that of the scores. Dimensions: ...ic for queries, ...jc
    for keys.
    """

    def __init__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, result_grad: torch.Tensor) -> None:
        self.q, self.k, v, self.g = (t.double() for t in (query, key, value, result_grad))
        self.scale = 1.0 / math.sqrt(query.shape[-1])
        self.p = (self.scale * self.q @ self.k.mT).softmax(-1)
        self.slope = self.p * (self.g @ v.mT - (self.g * (self.p @ v)).sum(-1, keepdim=True))

    def from_value(self, var: float) -> AttentionErrors:
        """An error of v changes the gradient of the weights."""
        c2 = var * self.scale**2
        to_query = (self.p.square() * _outer(_size(self.g), _size(self.k))).sum()
        return AttentionErrors(c2 * float(to_query), c2 * _moment(self.p, self.q, self.g), 0.0)

    def from_result(self, var: float) -> AttentionErrors:
        """An error of the result changes one number per query, the mean that softmax subtracts."""
        c2, g2 = var * self.scale**2, _size(self.g)
        to_query = (g2 * _size(self.p @ self.k)).sum()
        to_key = (self.p.square() * (g2 * _size(self.q)).unsqueeze(-1)).sum()
        return AttentionErrors(c2 * float(to_query), c2 * float(to_key), 0.0)

    def from_query(self, var: float) -> AttentionErrors:
        """An error of q changes the weights, and enters the gradient of k by itself."""
        c2 = var * self.scale**2
        to_value = (self.p.square() * _outer(_size(self.g), _size(self.k))).sum()
        to_query = self.scale**2 * _moment(self.slope.mT, self.k, self.k)
        return AttentionErrors(c2 * to_query, c2 * self._crossed(), c2 * float(to_value))

    def from_key(self, var: float) -> AttentionErrors:
        """The same with k in the place of q."""
        c2 = var * self.scale**2
        to_key = self.scale**2 * _moment(self.slope, self.q, self.q)
        return AttentionErrors(c2 * self._crossed(), c2 * to_key, c2 * _moment(self.p, self.q, self.g))

    def _crossed(self) -> float:
        products = self.scale * self.q @ self.k.mT
        norms = self.scale**2 * _outer(_size(self.q), _size(self.k))
        return float((self.slope.square() * (self.q.shape[-1] + 2.0 * products + norms)).sum())


def _size(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().sum(-1)


def _outer(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return first.unsqueeze(-1) * second.unsqueeze(-2)


def _moment(weights: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the sum over j of || sum over i of weights[i, j] first[i] second[i]^T ||^2."""
    return float(torch.einsum("...ij,...ic,...id->...jcd", weights, first, second).square().sum())
