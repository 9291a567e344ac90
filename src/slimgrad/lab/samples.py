"""What codecs are measured on: tensors as training saves them, each with a name that tables show."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch

from slimgrad.codecs import Codec


class Sample(NamedTuple):
    """One tensor to encode.

    `fitted` has codecs configured for just this tensor, by the word that the table shows; they are measured beside the
    default ones, and see `axis` as the channel axis.
    """

    name: str
    tensor: torch.Tensor
    fitted: Mapping[str, Codec] = MappingProxyType({})
    axis: int | None = None

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def synthetic(nbytes: int = 64 << 20, dtype: torch.dtype = torch.float32, seed: int = 0) -> Sample:
    """Return relu(N(0,1)): half zeros, and an RMS of 1 over the other half, so that a step of 1 RMS is a step of 1."""
    count = nbytes // dtype.itemsize
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).relu_()
    return Sample("relu(N(0,1))", values.to(dtype))


def rms_of_nonzero(tensor: torch.Tensor) -> float:
    """Return the RMS over the values that are not zero, 0.0 if there are none; in float64."""
    energy, count = 0.0, 0
    for part in tensor.detach().reshape(-1).split(1 << 22):
        energy += float(part.double().square().sum())
        count += int(torch.count_nonzero(part))
    return (energy / count) ** 0.5 if count else 0.0
