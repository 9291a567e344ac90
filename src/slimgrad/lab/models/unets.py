"""The U-Net, in two and three dimensions: the model whose skips keep the largest maps alive the longest."""

from __future__ import annotations

import torch
from torch import nn

from slimgrad.lab.models.convnets import he_init

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
UP = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def double_conv(inputs: int, outputs: int, dims: int) -> nn.Sequential:
    """Return two 3-wide convolutions with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for c_in in (inputs, outputs):
        layers += [CONV[dims](c_in, outputs, 3, padding=1, bias=False), NORM[dims](outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net of `depth` levels; each side of the input must be a multiple of 2 ** depth."""

    def __init__(self, dims: int = 2, classes: int = 10, in_channels: int = 3, base: int = 64, depth: int = 4):
        super().__init__()
        widths = [base * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double_conv(c_in, c_out, dims) for c_in, c_out in zip([in_channels, *widths], widths, strict=False)
        )
        self.pool = POOL[dims](2)
        self.up = nn.ModuleList(UP[dims](2 * c, c, 2, 2) for c in reversed(widths[:-1]))
        self.merge = nn.ModuleList(double_conv(2 * c, c, dims) for c in reversed(widths[:-1]))
        self.head = CONV[dims](base, classes, 1)
        he_init(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)

    def segments(self) -> list[nn.Module]:
        return [*self.down, *self.merge]
