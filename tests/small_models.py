"""Every model of the lab at a size that trains in a fraction of a second, with its kinds of layers kept."""

from __future__ import annotations

import torch
from torch import nn

from slimgrad.lab import models

CLASSES = 5
SMALL: dict[str, tuple[dict, int]] = {  # options of build, side of the input
    "alexnet": ({"width": 0.125, "hidden": 32}, 67),
    "vgg16": ({"width": 0.125, "hidden": 32, "pool": 1}, 32),
    "vgg16_bn": ({"width": 0.125, "hidden": 32, "pool": 1}, 32),
    "resnet18": ({"width": 0.125, "stem": "small"}, 32),
    "resnet50": ({"width": 0.125}, 32),
    "mobilenet": ({"width": 0.25}, 32),
    "unet2d": ({"base": 8, "depth": 2}, 16),
    "unet3d": ({"base": 4, "depth": 2}, 16),
    "gpt": ({"width": 32, "depth": 2, "heads": 2, "attention_dropout": 0.1}, 16),
    "vit": ({"width": 32, "depth": 2, "heads": 2, "size": 32, "patch": 8}, 32),
    "lstm": ({"width": 16}, 10),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """Return the small model, always the same for the same seed."""
    torch.manual_seed(seed)
    return models.build(name, classes=CLASSES, **SMALL[name][0])


def example(name: str, batch: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets for it."""
    return models.example(name, batch=batch, size=SMALL[name][1], classes=CLASSES, seed=seed)
