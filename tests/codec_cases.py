"""Tensors that each codec really codes, the same on every machine: for damage, golden bytes and determinism.

A case is (name, codec, tensor, bound); names are those of the files in tests/golden. Every codec has at least one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from slimgrad import Absolute, Relative
from slimgrad.codecs import Cast, Index, Nested
from slimgrad.codecs.base import Bound, Codec


class Case(NamedTuple):
    name: str
    codec: str | Codec
    tensor: torch.Tensor
    bound: Bound | None = None

    @property
    def codec_name(self) -> str:
        return self.codec if isinstance(self.codec, str) else self.codec.name


def scattered(count: int) -> torch.Tensor:
    """Return `count` integers from 0 to 2^24 - 1 without visible order; exact in float32."""
    return (torch.arange(count) * 2654435761 % 2**32) >> 8


def signed(count: int) -> torch.Tensor:
    """Return float32 values from -4 to 4, more of them near zero."""
    uniform = scattered(count).float() / 2.0**23 - 1.0
    return 4 * uniform * uniform.abs()


def relu(count: int) -> torch.Tensor:
    return signed(count).relu()


def pool_indices() -> torch.Tensor:
    """Return the indices of a 3x3 max-pool with stride 2 and padding 1 over 2 x 3 maps of 11 x 13."""
    maps = scattered(2 * 3 * 11 * 13).float().view(2, 3, 11, 13)
    return torch.nn.functional.max_pool2d(maps, 3, 2, 1, return_indices=True)[1]


def all_cases() -> list[Case]:
    indices = pool_indices()
    with_odd_ones = signed(300)
    with_odd_ones[[7, 90, 200, 299]] = torch.tensor([torch.nan, torch.inf, 1e30, -0.0])
    four = signed(2 * 3 * 10 * 7).view(2, 3, 10, 7)
    return [
        Case("raw", "raw", signed(100)),
        Case("nested", "nested", relu(500), Absolute(0.25)),
        Case("nested_signed", "nested", with_odd_ones, Absolute(0.25)),
        Case("nested_fine", "nested", signed(600), Relative(0.01)),
        Case("nested_centred", Nested(centred=True), four + 3, Relative(0.25)),
        Case("nested_bfloat16", "nested", relu(500).bfloat16(), Relative(0.5)),
        Case("mask_dropout", "mask", (scattered(333) % 3 > 0).float() / 0.9),
        Case("mask_bool", "mask", (scattered(333) % 2 > 0).view(3, 111).t()),
        Case("index", "index", indices),
        Case("index_window", Index.of_pool(indices, (11, 13), 3, 2, 1), indices),
        Case("zvc", "zvc", relu(400)),
        Case("zvc_float16", "zvc", relu(400).half().view(20, 20).t()),
        Case("zvc_int64", "zvc", scattered(200) * (scattered(200) % 3 == 0)),
        Case("rle", "rle", relu(500).sort().values),
        Case("rle_uint8", "rle", (relu(900) * 20).sort().values.to(torch.uint8)),
        Case("deflate", "deflate", (relu(3000) * 4).round()),
        Case("cast", "cast", with_odd_ones, Absolute(0.1)),
        Case("cast_float8", Cast("float8"), with_odd_ones.half(), Relative(0.2)),
        Case("acgc", "acgc", relu(600).view(20, 30), Absolute(0.05)),
        Case("acgc_signed", "acgc", with_odd_ones.half(), Relative(0.2)),
    ]
