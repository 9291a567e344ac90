"""Convolutional classifiers: AlexNet, VGG-16, ResNet-18/50, and a MobileNet of inverted residuals.

Layer for layer the published architectures, with in-place ReLU as most users have it; `width` scales every channel
count, so that the same shape of graph also runs in a test of seconds. Weights get torch's default initialisation,
except where depth needs He's.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from slimgrad.errors import ConfigError

VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions before the pool
MOBILE_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
RESNET_BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def scaled(channels: int, width: float) -> int:
    """Return the channel count at that width: a multiple of 8 unless the width is 1, and at least 8."""
    return channels if width == 1 else max(8, round(channels * width / 8) * 8)


def he_init(model: nn.Module) -> None:
    """Initialise every convolution for ReLU, so that deep plain nets start with a signal."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class OfStages(nn.Module):
    """Stages of convolutions, a pool of fixed size, linear layers: AlexNet and VGG."""

    features: nn.Sequential
    pool: nn.Module
    classifier: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))

    def segments(self) -> list[nn.Module]:
        return [*self.features, self.classifier]


class OfBlocks(nn.Module):
    """A stem, blocks that repeat, a head: ResNet and MobileNet."""

    stem: nn.Module
    blocks: nn.Sequential
    head: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)))

    def segments(self) -> list[nn.Module]:
        return [*self.blocks]


class AlexNet(OfStages):
    """The one-column AlexNet: five convolutions, three linear layers, dropout between them; `stem` as in ResNet."""

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1,
        in_channels: int = 3,
        hidden: int = 4096,
        dropout: float = 0.5,
        stem: str = "imagenet",
    ):
        super().__init__()
        c1, c2, c3, c4 = (scaled(c, width) for c in (64, 192, 384, 256))
        relu = functools.partial(nn.ReLU, inplace=True)
        first, side = nn.Conv2d(in_channels, c1, 11, 4, 2), 6
        if stem == "small":
            first, side = nn.Conv2d(in_channels, c1, 3, 1, 1), 3
        self.features = nn.Sequential(
            nn.Sequential(first, relu(), nn.MaxPool2d(3, 2)),
            nn.Sequential(nn.Conv2d(c1, c2, 5, padding=2), relu(), nn.MaxPool2d(3, 2)),
            nn.Sequential(nn.Conv2d(c2, c3, 3, padding=1), relu()),
            nn.Sequential(nn.Conv2d(c3, c4, 3, padding=1), relu()),
            nn.Sequential(nn.Conv2d(c4, c4, 3, padding=1), relu(), nn.MaxPool2d(3, 2)),
        )
        self.pool = nn.AdaptiveAvgPool2d(side)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(c4 * side * side, hidden), relu(),
            nn.Dropout(dropout), nn.Linear(hidden, hidden), relu(), nn.Linear(hidden, classes),
        )  # fmt: skip


class Vgg16(OfStages):
    """VGG-16, with batch norm after every convolution when `norm`."""

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1,
        in_channels: int = 3,
        hidden: int = 4096,
        dropout: float = 0.5,
        norm: bool = False,
        pool: int = 7,
    ):
        super().__init__()
        stages = []
        for channels, n_convs in VGG16_STAGES:
            out = scaled(channels, width)
            layers: list[nn.Module] = []
            for _ in range(n_convs):
                layers += [nn.Conv2d(in_channels, out, 3, padding=1)]
                layers += [nn.BatchNorm2d(out)] if norm else []
                layers += [nn.ReLU(inplace=True)]
                in_channels = out
            stages.append(nn.Sequential(*layers, nn.MaxPool2d(2, 2)))
        self.features = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = nn.Sequential(
            nn.Linear(in_channels * pool * pool, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, classes),
        )  # fmt: skip
        he_init(self)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)), the branch being two 3x3 convolutions or a bottleneck."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool):
        super().__init__()
        middle = outputs // 4 if bottleneck else outputs
        shapes = (
            [(inputs, middle, 1, 1), (middle, middle, 3, stride), (middle, outputs, 1, 1)]
            if bottleneck
            else [(inputs, middle, 3, stride), (middle, outputs, 3, 1)]
        )
        layers: list[nn.Module] = []
        for c_in, c_out, kernel, step in shapes:
            conv = nn.Conv2d(c_in, c_out, kernel, step, kernel // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
        self.branch = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.branch(x)
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(OfBlocks):
    """ResNet-18 or ResNet-50; `stem` is "imagenet" (7x7, stride 2, pool), "small" (3x3) or "pooled" (3x3, pool)."""

    def __init__(
        self, depth: int = 18, classes: int = 1000, width: float = 1, in_channels: int = 3, stem: str = "imagenet"
    ):
        super().__init__()
        bottleneck = depth >= 50
        channels = scaled(64, width)
        first = [nn.Conv2d(in_channels, channels, 7, 2, 3, bias=False)]
        if stem != "imagenet":  # for images of 32 x 32
            first = [nn.Conv2d(in_channels, channels, 3, 1, 1, bias=False)]
        pools = {"imagenet": [nn.MaxPool2d(3, 2, 1)], "small": [], "pooled": [nn.MaxPool2d(2)]}
        if stem not in pools:
            raise ConfigError(f"expected one of the stems {', '.join(pools)}, got {stem!r}")
        self.stem = nn.Sequential(*first, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *pools[stem])
        blocks = []
        inputs = channels
        for stage, n_blocks in enumerate(RESNET_BLOCKS[depth]):
            outputs = channels * 2**stage * (4 if bottleneck else 1)
            for i in range(n_blocks):
                stride = 2 if stage and i == 0 else 1
                blocks.append(Residual(inputs, outputs, stride, bottleneck))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
        he_init(self)


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter depthwise, narrow by 1x1; the input is added when the shape allows."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int):
        super().__init__()
        middle = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU6(inplace=True)]
        layers += [nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False), nn.BatchNorm2d(middle)]
        layers += [nn.ReLU6(inplace=True), nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.branch = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.branch(x) if self.adds else self.branch(x)


class MobileNet(OfBlocks):
    """A MobileNetV2: depthwise convolutions and ReLU6; with `stem` "small" its first two strides are 1."""

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1,
        in_channels: int = 3,
        dropout: float = 0.2,
        stem: str = "imagenet",
    ):
        super().__init__()
        inputs, is_small = scaled(32, width), stem == "small"
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, inputs, 3, 1 if is_small else 2, 1, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU6(inplace=True),
        )
        blocks = []
        for stage, (expand, channels, n_blocks, stride) in enumerate(MOBILE_STAGES):
            for i in range(n_blocks):
                outputs = scaled(channels, width)
                is_strided = i == 0 and not (is_small and stage == 1)
                blocks.append(InvertedResidual(inputs, outputs, stride if is_strided else 1, expand))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        last = scaled(1280, width)
        self.head = nn.Sequential(
            nn.Conv2d(inputs, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(last, classes),
        )  # fmt: skip
        he_init(self)
