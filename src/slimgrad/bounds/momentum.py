"""The momentum that an optimizer holds of a parameter, whatever kind of optimizer it is.

SGD keeps a decaying sum of gradients (`momentum_buffer`); it is taken as it is. Adam and its kin keep a decaying mean
(`exp_avg`), which begins at zero; it is divided by 1 - beta1^t, so that it is a mean from the first step on, as those
optimizers do themselves. Optimizers that keep neither, and parameters that never got a gradient, have none; nor has
RMSprop, whose buffer sums gradients that were divided by their own size.
"""

from __future__ import annotations

import torch
from torch.optim import Adadelta, Adafactor, Adagrad, RMSprop, Rprop


def momentum_of(optimizer: torch.optim.Optimizer | None, parameter: torch.Tensor | None) -> float | None:
    """Return mean |momentum| over the parameter, or None where the optimizer holds none."""
    state = {} if optimizer is None or parameter is None else getattr(optimizer, "state", {}).get(parameter, {})
    summed, averaged = state.get("momentum_buffer"), state.get("exp_avg")
    if isinstance(summed, torch.Tensor) and not isinstance(optimizer, RMSprop):
        return _mean_size(summed)
    if not isinstance(averaged, torch.Tensor) or optimizer is None:
        return None
    beta, steps = _first_beta(optimizer, parameter), float(state.get("step", 0))
    return _mean_size(averaged) / (1 - beta**steps if 0 < beta < 1 and steps > 0 else 1.0)


def moves_alike(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return whether the optimizer divides each gradient by its own size, as Adam, RMSprop and their kin do."""
    return optimizer is not None and (
        "betas" in getattr(optimizer, "defaults", {})
        or isinstance(optimizer, (Adadelta, Adafactor, Adagrad, RMSprop, Rprop))
    )


def _mean_size(values: torch.Tensor) -> float:
    return float(values.detach().float().abs().mean()) if values.numel() else 0.0


def _first_beta(optimizer: torch.optim.Optimizer, parameter: torch.Tensor | None) -> float:
    """Return beta1 of the parameter's group; 0.0 where it has none."""
    for group in optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return float(group.get("betas", (0.0,))[0])
    return 0.0
