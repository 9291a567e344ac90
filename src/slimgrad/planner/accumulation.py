"""Keep the effective batch when a smaller one fits: gradients of equal parts, added up.

    parts = Accumulation(effective=256, fits=48)        six parts of 43 or 42 examples
    for weight, (x, y) in parts.split(inputs, target):
        (weight * criterion(model(x), y)).backward()    with a mean loss, .grad becomes that of the whole batch
    optimizer.step()

Batch norm still sees each part alone: no accumulation can change that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from slimgrad.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How a batch of `effective` examples is cut into parts of at most `fits`, as even as possible."""

    effective: int
    fits: int

    def __post_init__(self) -> None:
        if self.effective < 1 or self.fits < 1:
            raise ConfigError(
                f"expected batches of at least 1, got effective={self.effective} and fits={self.fits}; "
                "write Accumulation(effective=256, fits=48)"
            )

    @property
    def sizes(self) -> list[int]:
        """Examples of each part."""
        n_parts = -(-self.effective // self.fits)
        small, n_large = divmod(self.effective, n_parts)
        return [small + 1] * n_large + [small] * (n_parts - n_large)

    def split(self, *tensors: torch.Tensor) -> Iterator[tuple[float, tuple[torch.Tensor, ...]]]:
        """Yield each part's share of the batch and its slices of the tensors, along their first dimension."""
        wrong = [len(tensor) for tensor in tensors if len(tensor) != self.effective]
        if wrong:
            raise ConfigError(f"expected tensors of {self.effective} examples, got {wrong[0]}")
        for size, parts in zip(self.sizes, zip(*(t.split(self.sizes) for t in tensors), strict=True), strict=True):
            yield size / self.effective, parts
