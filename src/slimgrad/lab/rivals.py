"""SZ3, ZFP and zstd with the same interface as our codecs, for the same table; present where their package is.

Each is used as its documentation shows for an absolute bound, on numpy arrays of the tensor's own shape: SZ3 and ZFP
predict along the dimensions, so flattening would be unfair to them. Only float32 goes to SZ3 and ZFP; zstd (level 1,
its fastest) is lossless and takes any bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Rival:
    """A compressor of another project: `encode(tensor, eps)` gives what `decode` and `nbytes` take."""

    name: str
    package: str
    is_lossless: bool
    encode: Callable[[torch.Tensor, float], Any]
    decode: Callable[[Any], torch.Tensor]
    nbytes: Callable[[Any], int]

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether this rival can code the tensor at all."""
        return self.is_lossless or (tensor.dtype == torch.float32 and tensor.dim() <= 4)


def installed() -> list[Rival]:
    """Return the rivals whose package is there."""
    return [rival for rival in RIVALS if find_spec(rival.package)]


def _sz3_encode(tensor: torch.Tensor, eps: float) -> tuple[np.ndarray, tuple[int, ...]]:
    import pysz

    config = pysz.szConfig()
    config.errorBoundMode = pysz.szErrorBoundMode.ABS
    config.absErrorBound = eps
    payload, _ = pysz.sz.compress(tensor.numpy(), config)
    return payload, tuple(tensor.shape)


def _sz3_decode(coded: tuple[np.ndarray, tuple[int, ...]]) -> torch.Tensor:
    import pysz

    payload, shape = coded
    return torch.from_numpy(pysz.sz.decompress(payload, np.float32, shape)[0])


def _zfp_encode(tensor: torch.Tensor, eps: float) -> bytes:
    import zfpy

    return zfpy.compress_numpy(tensor.numpy(), tolerance=eps)


def _zfp_decode(coded: bytes) -> torch.Tensor:
    import zfpy

    return torch.from_numpy(zfpy.decompress_numpy(coded))


def _zstd_encode(tensor: torch.Tensor, eps: float) -> tuple[bytes, torch.dtype, tuple[int, ...]]:
    import zstandard

    flat = tensor.contiguous().view(-1).view(torch.uint8).numpy()
    return zstandard.ZstdCompressor(level=1).compress(flat.data), tensor.dtype, tuple(tensor.shape)


def _zstd_decode(coded: tuple[bytes, torch.dtype, tuple[int, ...]]) -> torch.Tensor:
    import zstandard

    payload, dtype, shape = coded
    out = torch.empty(shape, dtype=dtype)
    zstandard.ZstdDecompressor().stream_reader(payload).readinto(out.view(-1).view(torch.uint8).numpy())
    return out


RIVALS = (
    Rival("SZ3", "pysz", False, _sz3_encode, _sz3_decode, lambda coded: coded[0].nbytes),
    Rival("ZFP", "zfpy", False, _zfp_encode, _zfp_decode, len),
    Rival("zstd", "zstandard", True, _zstd_encode, _zstd_decode, lambda coded: len(coded[0])),
)
