"""A short round trip through every codec on this machine, for `slimgrad doctor --self-test`.

It is for a user whose processor or accelerator no test of ours has run on. Every codec gets tensors that it takes, of
awkward lengths and with NaN, infinities and zeros; lossless codes must return every bit, others must keep their bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from slimgrad import codecs
from slimgrad.bounds.fixed import Absolute
from slimgrad.errors import SlimgradError

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.int64)
LENGTHS = (0, 1, 63, 1823, 100_003)  # around a word, odd, and more than one block of every codec
EPS = 0.05


class Outcome(NamedTuple):
    """What happened to one codec with one dtype; `fault` is empty when all went well."""

    codec: str
    dtype: torch.dtype
    fault: str


def run() -> Iterator[Outcome]:
    """Yield an outcome per codec and dtype that it takes."""
    for name in codecs.names():
        codec = codecs.get(name)
        for dtype in DTYPES:
            if codec.dtypes and dtype not in codec.dtypes:
                continue
            faults = (check(codec, tensor) for length in LENGTHS for tensor in (sample(dtype, length),))
            yield Outcome(name, dtype, next((fault for fault in faults if fault), ""))


def check(codec: codecs.Codec, tensor: torch.Tensor) -> str:
    """Return what is wrong with a round trip of this tensor; "" if nothing is."""
    try:
        restored = codecs.decode(codecs.encode(tensor, codec, None if codec.is_lossless else Absolute(EPS)))
    except SlimgradError as error:
        return f"{type(error).__name__}: {error}"
    if restored.shape != tensor.shape or restored.dtype != tensor.dtype:
        return f"expected {tensor.dtype} {tuple(tensor.shape)}, got {restored.dtype} {tuple(restored.shape)}"
    is_same = _bits(restored) == _bits(tensor)
    if codec.is_lossless:
        return "" if is_same.all() else f"{int((~is_same).sum())} of {tensor.numel()} values changed"
    error = (restored.double() - tensor.double()).abs().masked_fill(is_same, 0.0)
    error = error.nan_to_num(torch.inf)
    return "" if bool((error <= EPS).all()) else f"error {float(error.max()):g} beyond the bound {EPS:g}"


def sample(dtype: torch.dtype, length: int) -> torch.Tensor:
    """Return values of this dtype: half zeros, and NaN and infinities where it has them."""
    values = torch.randn(length, generator=torch.Generator().manual_seed(length)).relu_()
    if not dtype.is_floating_point:
        return (values * 3).to(dtype)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])[: length // 10]
    values[: special.numel()] = special
    return values.to(dtype)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as integers, so that NaN equals itself and -0 differs from 0."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(words[tensor.element_size()])
