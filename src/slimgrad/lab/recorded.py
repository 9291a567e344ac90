"""Real activations: a small network is trained for some steps, then one forward pass is recorded.

Codecs behave differently on real activations than on noise: maps are smooth, channels differ in scale, some are dead.
The network is the pattern most convolutional nets repeat, conv - batch norm - ReLU - max-pool.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from slimgrad.codecs.index import Index
from slimgrad.codecs.nested import Nested
from slimgrad.lab.data import batches, fashion_mnist
from slimgrad.lab.samples import Sample

POOL = 2
LEARNING_RATE = 0.01  # SGD with momentum; at 0.05 the second block dies, and its maps compress as nothing real does


class SmallNet(nn.Module):
    """Two blocks of conv - batch norm - ReLU - max-pool, then a linear layer; (n, 1, 28, 28) -> (n, 10)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (1, width, 2 * width)
        self.blocks = nn.ModuleList(_block(n_in, n_out) for n_in, n_out in pairwise(widths))
        self.head = nn.Linear(2 * width * 7 * 7, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1))


def _block(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(POOL)
    )


def train(model: nn.Module, steps: int, batch: int, seed: int = 0) -> list[float]:
    """Train on the shipped images and return the loss of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for images in batches(fashion_mnist("train"), batch, steps, seed):
        loss = nn.functional.cross_entropy(model(images.x), images.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def record(model: SmallNet, batch: int) -> list[Sample]:
    """Return what the blocks save for backward in one forward pass over `batch` test images."""
    samples: list[Sample] = []
    x = fashion_mnist("test").x[:batch]
    with torch.no_grad():
        for number, block in enumerate(model.blocks, start=1):
            assert isinstance(block, nn.Sequential)
            convolve, normalise, relu, _ = block
            convolved = convolve(x)
            rectified = relu(normalise(convolved))
            x, indices = nn.functional.max_pool2d(rectified, POOL, return_indices=True)
            window = Index.of_pool(indices, rectified.shape[2:], POOL)
            samples += [
                Sample(f"batch-norm input {number}", convolved, {"nested centred": Nested(centred=True)}, axis=1),
                Sample(f"relu output {number}", rectified),
            ]
            if number == 1:  # masks and indices hardly differ from block to block
                samples += [
                    Sample(f"relu mask {number}", rectified > 0),
                    Sample(f"pool indices {number}", indices, {"index window": window}),
                ]
    return sorted(samples, key=lambda sample: sample.name)


def activations(steps: int = 40, batch: int = 128, seed: int = 0) -> list[Sample]:
    """Return recorded activations of a network trained for `steps` steps; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallNet()
        train(model, steps, batch, seed)
    return record(model, batch)
