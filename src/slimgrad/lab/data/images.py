"""Labelled images as a Source: kept as bytes, made into normalised floats batch by batch.

Means and deviations are those of the training images, per channel. With `augment`, training batches are cropped at
random from two pixels of padding and mirrored at random: four are usual for CIFAR-10 and suit longer trainings.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from slimgrad.errors import ConfigError
from slimgrad.lab.data.base import Pair, generator, picked

PADDING = 2  # pixels on each side that a crop may move by
N_MOMENTS = 5000
AUGMENT_SEED = 7_919  # augmentation has random numbers apart from those of the order


class LabelledImages:
    """Images (n, channels, height, width) of bytes with one label each; `test` is what training never sees."""

    unit = "images"

    def __init__(self, name: str, train: Pair, test: Pair, augment: bool = False) -> None:
        self.name, self.augment = name, augment
        self._train, self._test = train, test
        self.shape = tuple(train.x.shape[1:])
        self.classes = int(torch.cat([train.y, test.y]).max()) + 1
        self.n_train = len(train.y)
        self._mean, self._std = _moments(train.x)

    def batch(self, step: int, size: int, seed: int) -> Pair:
        which = picked(self.n_train, step, size, seed)
        x, y = self._train.x[which], self._train.y[which]
        if self.augment:
            x = augmented(x, generator(seed + AUGMENT_SEED, step))
        return Pair(self._normalised(x), y)

    def held_out(self, size: int) -> Iterator[Pair]:
        for x, y in zip(self._test.x.split(size), self._test.y.split(size), strict=True):
            yield Pair(self._normalised(x), y)

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() - self._mean) / self._std


def augmented(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return every image moved by up to PADDING pixels each way, and half of them mirrored."""
    n, _, height, width = x.shape
    top, left = torch.randint(2 * PADDING + 1, (2, n), generator=random).tolist()
    mirrored = (torch.rand(n, generator=random) < 0.5).tolist()
    padded = F.pad(x, (PADDING,) * 4)
    moved = torch.empty_like(x)
    for i in range(n):  # one index over all of them takes forty times as long
        image = padded[i, :, top[i] : top[i] + height, left[i] : left[i] + width]
        moved[i] = image.flip(2) if mirrored[i] else image
    return moved


def resized(x: torch.Tensor, side: int) -> torch.Tensor:
    """Return byte images of side x side: black around smaller ones, means of squares of pixels for larger ones."""
    old = x.shape[-1]
    if side >= old:
        before = (side - old) // 2
        after = side - old - before
        return F.pad(x, (before, after, before, after))
    if old % side:
        sides = ", ".join(str(n) for n in range(4, old + 1) if old % n == 0)
        raise ConfigError(f"expected a size that divides {old}, such as {sides}, got {side}; write --size {old}")
    parts = [F.avg_pool2d(part.float(), old // side).round().to(torch.uint8) for part in x.split(4096)]
    return torch.cat(parts)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation per channel, of at most N_MOMENTS images spread over all of them."""
    some = x[:: max(1, len(x) // N_MOMENTS)].float()
    std, mean = torch.std_mean(some, dim=(0, 2, 3), keepdim=True)
    return mean, std.clamp_min(1.0)
