"""What every data set is: batches by step, and examples that training never sees.

`batch(step, size, seed)` is a pure function: no iterator holds a place in the data, so a run that is resumed at a step
sees what the uninterrupted run saw, and two arms with one seed see the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch

from slimgrad.errors import ConfigError

SEED_STRIDE = 1_000_003  # keeps the generators of neighbouring seeds and steps apart


class Pair(NamedTuple):
    """Inputs and targets of one batch."""

    x: torch.Tensor
    y: torch.Tensor


class Source(Protocol):
    """A data set, or something that stands for one."""

    name: str
    shape: tuple[int, ...]  # of one input; one dimension: tokens
    classes: int
    unit: str  # what is counted: "images" or "tokens"
    n_train: int  # examples in one pass

    def batch(self, step: int, size: int, seed: int) -> Pair: ...

    def held_out(self, size: int) -> Iterator[Pair]: ...


def generator(seed: int, number: int) -> torch.Generator:
    """Return random numbers of their own for every pair of a seed and a number."""
    return torch.Generator().manual_seed(seed * SEED_STRIDE + number)


def picked(n: int, step: int, size: int, seed: int) -> torch.Tensor:
    """Return which of n examples make up the batch of a step; a pass visits none twice and leaves a short rest out."""
    per_pass = n // size
    if not per_pass:
        raise ConfigError(f"expected a batch of at most {n} examples, got {size}; write --batch {max(1, n // 10)}")
    number, place = divmod(step, per_pass)
    order = torch.randperm(n, generator=generator(seed, number))
    return order[place * size : (place + 1) * size]
