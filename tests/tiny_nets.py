"""A user's own model, as `slimgrad bench steps --model tiny_nets:cnn` would load it."""

from __future__ import annotations

from torch import nn


class Tiny(nn.Sequential):
    """Five convolutions, four of them in two segments; its activations outweigh its parameters a hundred times."""

    def segments(self) -> list[nn.Module]:
        return [self[1], self[2]]


def cnn() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    halves = nn.Sequential(*layers[:6]), nn.Sequential(*layers[6:])
    return Tiny(nn.Conv2d(3, 8, 3), *halves, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


cnn.input_shape = (3, 96, 96)
