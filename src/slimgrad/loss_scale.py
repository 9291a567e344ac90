"""What lies between the gradients of backward and those that the optimizer gets: a loss scale, and clipping.

    scale.sample(parameter)        in backward: from now on the energy of its .grad is noted when something was added
    scale.before_step(optimizer)   what the optimizer is given of it, against that
    scale.value                    gradients in backward / gradients for the optimizer, as last known

The sample is taken after each backward and not only after a measured one, since several may come before a step.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from slimgrad.streams import energy


class LossScale:
    """Follows one parameter from a measured backward to the next step of its optimizer."""

    def __init__(self) -> None:
        self.value = 1.0
        self._parameter: torch.Tensor | None = None
        self._hook: Any = None
        self._energy: torch.Tensor | None = None  # of its .grad, after the last backward

    def sample(self, parameter: torch.Tensor) -> None:
        """Follow this parameter, unless another one is followed."""
        if self._parameter is None:
            self._parameter = parameter
            self._hook = parameter.register_post_accumulate_grad_hook(self._accumulated)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what the optimizer is given."""
        parameter, before = self._parameter, self._energy
        if parameter is None or before is None or parameter.grad is None:
            return
        if not any(parameter is held for group in optimizer.param_groups for held in group["params"]):
            return
        still_scaled = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides by it itself
        divisor = 1.0 if still_scaled is None else float(still_scaled)
        before2, after2 = float(before), float(energy(parameter.grad)) / divisor**2
        if 0.0 < before2 < math.inf and 0.0 < after2 < math.inf:
            self.value = math.sqrt(before2 / after2)
        self.forget()

    def forget(self) -> None:
        """Follow no parameter."""
        if self._hook is not None:
            self._hook.remove()
        self._parameter = self._hook = self._energy = None

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._energy = energy(parameter.grad)
