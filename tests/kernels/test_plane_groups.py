"""Planes in groups of four bits: empty groups are left out, and what is read back is what was written."""

from __future__ import annotations

import pytest
import torch

from slimgrad.errors import CorruptPayload
from slimgrad.kernels import native, reference
from slimgrad.kernels.reference.nested import ENTRY
from slimgrad.kernels.reference.nested_choice import HEADER, NestedWish

WISH = NestedWish(1, 1, False, False, 0.0, 0.5, apart=1 << 20)  # a step of 1, and no neighbours
KERNELS = pytest.mark.parametrize("kernels", [reference, native], ids=["reference", "native"])


def payload_of(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(5 * x.numel() + 4096, dtype=torch.uint8)
    return out[: native.pack_nested(x, WISH, out)].clone()


def index_at(payload: torch.Tensor) -> int:
    levels = int(payload[2])
    return HEADER.size + 4 * (2 * levels + 1)  # thresholds and values


def form_of(payload: torch.Tensor) -> tuple[int, bool, int]:
    form = ENTRY.unpack_from(payload.numpy().tobytes(), index_at(payload))[1]
    return form & 3, bool(form >> 2 & 1), form >> 3


def patches(n: int, every: int) -> torch.Tensor:
    """Return ones in runs of 16, one run of `every`."""
    return (torch.arange(n) // 16 % every == 0).float()


def test_a_map_of_patches_takes_less_than_a_bit_per_value() -> None:
    x = patches(1 << 16, 8)
    payload = payload_of(x * 0.5)
    assert form_of(payload) == (0, True, 0)
    assert 8 * payload.numel() / x.numel() < 1 / 4 + 1 / 8 + 0.03  # a flag per four values, and an eighth of the values


def test_an_upper_plane_that_is_nearly_empty_is_grouped_and_those_before_it_are_not() -> None:
    x = torch.full((1 << 14,), 1.5)
    x[::2] = 2.5
    x[::512] = 3.5
    payload = payload_of(x)
    assert form_of(payload) == (0, False, 1)  # x > 0 and x > 1 everywhere, x > 2 at every second, x > 3 hardly ever
    out = torch.empty_like(x)
    native.unpack_nested(payload, out)
    assert torch.allclose(out, x)


def test_dense_planes_stay_as_they_are() -> None:
    x = torch.full((1 << 14,), 0.5)
    x[torch.rand(1 << 14) < 0.5] = 1.5
    assert form_of(payload_of(x)) == (0, False, 0)


@KERNELS
@pytest.mark.parametrize("density", [0.001, 0.03, 0.2, 0.4, 0.9])
@pytest.mark.parametrize("n", [1, 63, 257, 16_385])
def test_what_is_read_back_is_what_was_written(kernels, density: float, n: int) -> None:
    x = (torch.rand(n) < density) * torch.randn(n).abs() * 2
    out = torch.full_like(x, 77.0)
    kernels.unpack_nested(payload_of(x), out)
    assert bool(((out - x).abs() <= 0.5).all())
    assert torch.equal(out > 0, x > 0)


@KERNELS
@pytest.mark.parametrize(
    "form", [1 << 2, 1 << 3, 2 | 1 << 2, 2 | 1 << 3]
)  # plane 0, another one; the same of raw blocks
@pytest.mark.parametrize("value", [0.0, 0.5])  # no planes, and one that is not grouped
def test_groups_of_planes_that_are_not_there_are_rejected(kernels, value: float, form: int) -> None:
    payload = payload_of(torch.full((1000,), value))
    assert form_of(payload) == (0, False, 0)
    payload[index_at(payload) + 4] = form
    with pytest.raises(CorruptPayload, match="nested"):
        kernels.unpack_nested(payload, torch.empty(1000))


@KERNELS
def test_groups_that_run_beyond_the_block_are_rejected(kernels) -> None:
    payload = payload_of(patches(1000, 8) * 0.5)
    flags = index_at(payload) + ENTRY.size
    payload[flags : flags + 4] = 255  # many more groups than there are bytes for
    with pytest.raises(CorruptPayload, match="nested"):
        kernels.unpack_nested(payload, torch.empty(1000))
