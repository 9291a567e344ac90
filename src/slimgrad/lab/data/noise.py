"""Random images of any size, or random tokens: for measuring memory and speed, where values hardly matter."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slimgrad.lab.data.base import Pair, generator

TEST_SEED = 104_729
N_TEST_BATCHES = 2


class RandomExamples:
    """Normal noise of a shape, or tokens where it has one dimension, with one random target each or per place."""

    def __init__(self, shape: tuple[int, ...], classes: int = 10, per_place: bool = False, n_train: int = 1024) -> None:
        self.name = "random"
        self.shape, self.classes, self.n_train = shape, classes, n_train
        self.unit = "tokens" if len(shape) == 1 else "images"
        self._per_place = per_place

    def batch(self, step: int, size: int, seed: int) -> Pair:
        random = generator(seed, step)
        if len(self.shape) == 1:
            tokens = torch.randint(self.classes, (size, self.shape[0] + 1), generator=random)
            return Pair(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        places = self.shape[1:] if self._per_place else ()
        x = torch.randn(size, *self.shape, generator=random)
        return Pair(x, torch.randint(self.classes, (size, *places), generator=random))

    def held_out(self, size: int) -> Iterator[Pair]:
        for step in range(N_TEST_BATCHES):
            yield self.batch(step, size, TEST_SEED)
