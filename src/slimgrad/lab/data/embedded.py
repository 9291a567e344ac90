"""The images that ship inside the package, as tensors: 5,000 + 1,000 of Fashion-MNIST, ten balanced classes.

Enough to train a small network for real within a minute and without a download. One per cent of the test set is ten
images, so nothing measured here supports a claim about accuracy.
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
import torch

from slimgrad.errors import ConfigError

ARCHIVE = "fmnist_5000_1000.npz"


class Images(NamedTuple):
    """Labelled images in [0, 1]."""

    x: torch.Tensor  # (n, 1, 28, 28) float32
    y: torch.Tensor  # (n,) int64


def fashion_mnist(split: str = "train") -> Images:
    """Return the 5,000 images of split "train" or the 1,000 of "test"."""
    if split not in ("train", "test"):
        raise ConfigError(f"expected split 'train' or 'test', got {split!r}")
    with resources.as_file(resources.files("slimgrad") / "data" / ARCHIVE) as path, np.load(path) as arrays:
        pixels, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    return Images(torch.from_numpy(pixels).unsqueeze(1) / 255, torch.from_numpy(labels).long())


def batches(images: Images, size: int, steps: int, seed: int = 0):
    """Yield `steps` random batches, the same for the same seed; the last of a pass over the data is never short."""
    order = torch.Generator().manual_seed(seed)
    shuffled: list[torch.Tensor] = []
    for _ in range(steps):
        if not shuffled:
            whole = len(images.y) // size * size
            if not whole:
                raise ConfigError(f"expected a batch of at most {len(images.y)} images, got {size}")
            shuffled = list(torch.randperm(len(images.y), generator=order)[:whole].split(size))
        picked = shuffled.pop()
        yield Images(images.x[picked], images.y[picked])
