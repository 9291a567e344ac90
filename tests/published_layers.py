"""Layers in numbers, for the published bounds: what their backward saw, and the worst that errors can do.

    layer = conv(x, gy, weight, stride=2, padding=1)     also linear(x, gy), batch_norm(x, gz, gamma)
    layer.reader                                         the statistics that a session would take
    layer.error2(d)                                      energies that an error d of x adds to each gradient
    worst(layer, eps)                                    the same for errors |d| <= eps that somebody made to hurt

Everything is float64, so that a bound that is exceeded is exceeded by more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from slimgrad.bounds.base import NormChannels, Reader, Reading, SiteReading

functional = torch.nn.functional
ROUNDS = 25  # of ascent; it stands still long before


class Layer(NamedTuple):
    x: torch.Tensor
    reader: Reader
    gradients: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]  # of the saved input: (weight, input)
    starts: tuple[torch.Tensor, ...]  # directions from which an adversary begins

    def error2(self, d: torch.Tensor) -> list[float]:
        """Return the energies that an error d of the saved input adds to the gradients of weight and input."""
        return [energy.item() for energy in self._error2(d)]

    def _error2(self, d: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(self.gradients(self.x + d), self.gradients(self.x), strict=True)
        return [(with_error - exact).square().sum() for with_error, exact in pairs]

    def energy(self) -> list[float]:
        return [gradient.square().sum().item() for gradient in self.gradients(self.x)]


def worst(layer: Layer, eps: torch.Tensor | float, which: int = 0) -> float:
    """Return the largest error energy found for one gradient, as a share of its own energy.

    The energy is convex in d (for a norm almost), so its largest value over |d| <= eps lies in a corner, and stepping
    to the corner that the slope points at never goes down.
    """
    eps = torch.as_tensor(eps, dtype=torch.float64)
    found = 0.0
    for start in layer.starts:
        d = torch.where(start >= 0, eps, -eps)
        for _ in range(ROUNDS):
            leaf = d.clone().requires_grad_(True)
            energy = layer._error2(leaf)[which]
            found = max(found, energy.item())
            (slope,) = torch.autograd.grad(energy, leaf)
            d = torch.where(slope >= 0, eps, -eps)
    return found / layer.energy()[which]


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(seed: int, *shape: int) -> torch.Tensor:
    """Return values between -1 and 1, drawn from other seeds than normal(): equal ones would go together."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed + 10_000), dtype=torch.float64) * 2 - 1


def _peak(gy: torch.Tensor) -> float:
    return float(gy.abs().flatten(1).amax(1).mean())


def conv(x: torch.Tensor, gy: torch.Tensor, weight: torch.Tensor, transposed: bool = False, **options) -> Layer:
    """Return a convolution in one to three dimensions whose output gradient is gy."""
    ndim = x.dim() - 2
    function = getattr(functional, f"conv{'_transpose' if transposed else ''}{ndim}d")
    weight = weight.clone().requires_grad_(True)

    def gradients(saved: torch.Tensor) -> tuple[torch.Tensor]:
        (gw,) = torch.autograd.grad(function(saved, weight, **options), weight, gy, create_graph=True)
        return (gw,)

    leaf = x.clone().requires_grad_(True)
    (back,) = torch.autograd.grad(function(leaf, weight.detach(), **options), leaf, gy)
    gw = gradients(x)[0].detach()
    reader = Reader(
        function.__name__,
        "weight",
        batch=len(gy),
        in_channels=x.shape[1],
        out_channels=gy.shape[1],
        groups=options.get("groups", 1),
        taps=weight[0, 0].numel(),
        overlap=1.0 if transposed else _overlap(function, x, weight.detach(), options),
        stride=options.get("stride", 1) ** ndim,
        places=gy[0, 0].numel(),
        out_grad2=float(gy.square().sum()),
        out_grad_peak=_peak(gy),
        weight_grad2=float(gw.square().sum()),
        weight_grad_abs=float(gw.abs().mean()),
    )
    return Layer(x, reader, gradients, (back, torch.ones_like(x), x, normal(1, *x.shape)))


def _overlap(function: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, options: dict) -> float:
    """Return the share of (tap, output position) pairs that lie on the input: what a kernel of ones sees of ones."""
    counts = function(torch.ones_like(x[:1, :1]), torch.ones_like(weight[:1, :1]), **{**options, "groups": 1})
    return float(counts.mean()) / weight[0, 0].numel()


def linear(x: torch.Tensor, gy: torch.Tensor) -> Layer:
    """Return a linear layer with inputs (..., C) and output gradients (..., K)."""
    rows, grads = x.flatten(0, -2), gy.flatten(0, -2)

    def gradients(saved: torch.Tensor) -> tuple[torch.Tensor]:
        return (grads.T @ saved.flatten(0, -2),)

    gw = gradients(x)[0]
    reader = Reader(
        "linear",
        "weight",
        batch=len(gy),
        in_channels=x.shape[-1],
        out_channels=gy.shape[-1],
        places=len(rows) // len(gy),
        out_grad2=float(gy.square().sum()),
        out_grad_peak=_peak(gy),
        weight_grad2=float(gw.square().sum()),
        weight_grad_abs=float(gw.abs().mean()),
    )
    return Layer(x, reader, gradients, ((grads @ gw).view_as(x), torch.ones_like(x), normal(1, *x.shape)))


def batch_norm(x: torch.Tensor, gz: torch.Tensor, gamma: torch.Tensor) -> Layer:
    """Return a batch norm in training mode over (C, M) values; its gradients are those of gamma and of x."""
    values = x.shape[1]
    mean = x.mean(1, keepdim=True)
    inv_std = (x.var(1, unbiased=False, keepdim=True) + 1e-5).rsqrt()

    def gradients(saved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normalised = (saved - mean) * inv_std
        ggamma = (gz * normalised).sum(1, keepdim=True)
        inner = gz - gz.mean(1, keepdim=True) - normalised * ggamma / values
        return ggamma, gamma.view(-1, 1) * inv_std * inner

    ggamma, gx = gradients(x)
    norm = NormChannels(
        inv_std=tuple(inv_std.view(-1).tolist()),
        weight=tuple(gamma.tolist()),
        weight_grad=tuple(ggamma.view(-1).tolist()),
        peak_input=tuple(x.abs().amax(1).tolist()),
        peak_grad=tuple(gz.abs().amax(1).tolist()),
        n_grads=tuple((gz != 0).sum(1).tolist()),
    )
    reader = Reader(
        "batch_norm",
        "weight",
        batch=values,
        in_channels=len(x),
        out_channels=len(x),
        out_grad2=float(gz.square().sum()),
        out_grad_peak=float(gz.abs().amax(0).mean()),
        in_grad2=float(gx.square().sum()),
        weight_grad2=float(ggamma.square().sum()),
        weight_grad_abs=float(ggamma.abs().mean()),
        norm=norm,
    )
    return Layer(x, reader, gradients, (gz, x - mean, gz * (x - mean), normal(1, *x.shape)))


def reading(*layers: Layer, step: int = 1, path: str = "layer", scale: float = 1.0) -> Reading:
    """Return what a session would have measured of these readers of one tensor."""
    x = layers[0].x
    site = SiteReading(
        site=(path, 0),
        role="conv input",
        order=0,
        numel=x.numel(),
        nbytes=4 * x.numel(),
        rel=0.25,
        eps=0.1,
        rms=float(x[x != 0].square().mean().sqrt()),
        density=float((x != 0).double().mean()),
        readers=tuple(layer.reader for layer in layers),
    )
    return Reading(step, 1.0, (site,), scale)
