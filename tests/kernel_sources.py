"""The sources of kernels that the kernel tests run over, and buffers that make careless kernels show."""

from __future__ import annotations

import contracts
import pytest
import torch

from slimgrad.kernels import native, reference

LENGTHS = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 129, 1023, 16383, 16384, 16385, 40000]
WORDS = [torch.uint8, torch.int16, torch.int32, torch.int64]
every_source = pytest.mark.parametrize("source", ["reference", *contracts.known_isas()])
every_word = pytest.mark.parametrize("dtype", WORDS, ids=lambda dtype: str(dtype).removeprefix("torch."))


class Kernels:
    """The functions of one source, each called while that source's instruction set is chosen."""

    def __init__(self, source: str) -> None:
        self.module = reference if source == "reference" else native
        self.use = contracts.reference_kernels if source == "reference" else lambda: contracts.native_kernels(source)

    def __getattr__(self, name: str):
        def call(*args):
            with self.use():
                return getattr(self.module, name)(*args)

        return call


def room(nbytes: int, offset: int = 3) -> torch.Tensor:
    """Return bytes at an odd address, full of a pattern, so that what is not written and misaligned writes show."""
    return torch.full((nbytes + offset + 8,), 0xAA, dtype=torch.uint8)[offset : offset + nbytes]


def moved(data: torch.Tensor, offset: int = 5) -> torch.Tensor:
    """Return the same bytes at an odd address, with a pattern behind them that a decoder must not believe."""
    place = room(data.numel(), offset)
    place.copy_(data)
    return place


def sparse_words(count: int, dtype: torch.dtype, density: float, seed: int = 0) -> torch.Tensor:
    """Return random words of which this share is not zero, in runs of all lengths."""
    rng = torch.Generator().manual_seed(seed)
    info = torch.iinfo(dtype)
    words = torch.randint(info.min, info.max, (count,), dtype=dtype, generator=rng)
    runs = torch.rand(count // 9 + 1, generator=rng).repeat_interleave(9)[:count]
    return torch.where(0.5 * runs + 0.5 * torch.rand(count, generator=rng) < density, words, torch.zeros_like(words))
