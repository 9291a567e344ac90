"""nested where a wrong lane, bit or comparison hides among random values: each case found by breaking a kernel."""

import pytest
import torch
from kernel_sources import Kernels, every_source, room

from slimgrad.kernels import reference
from slimgrad.kernels.reference.nested_choice import NestedWish

PATTERN = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
every_dtype = pytest.mark.parametrize("dtype", PATTERN, ids=str)


def wish(rel: float = 0.0, absolute: float = 0.0, centred: bool = False) -> NestedWish:
    return NestedWish(1, 1, centred, False, rel, absolute)


def coded(kernels, x: torch.Tensor, what: NestedWish) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the payload of x and the values restored from it."""
    payload = room(x.numel() * 5 + 4096)
    payload = payload[: kernels.pack_nested(x, what, payload)]
    restored = torch.full_like(x, 77.0)
    kernels.unpack_nested(payload, restored)
    return payload, restored


def check_equals_reference(kernels: Kernels, x: torch.Tensor, what: NestedWish) -> torch.Tensor:
    """Assert equal bytes and values, bit for bit; return the values."""
    payload, restored = coded(kernels, x, what)
    expected, values = coded(reference, x, what)
    assert torch.equal(payload, expected)
    assert torch.equal(restored.view(PATTERN[x.dtype]), values.view(PATTERN[x.dtype]))
    return restored


@every_source
@every_dtype
def test_one_negative_value_is_seen_in_every_lane(source: str, dtype: torch.dtype) -> None:
    kernels = Kernels(source)
    for place in [*range(64), 130]:  # a whole group, and one that is filled up
        x = torch.linspace(0.0, 3.0, 131).to(dtype)
        x[place] = -1.5
        restored = check_equals_reference(kernels, x, wish(absolute=0.25))
        assert restored[place] < 0
        assert int((restored < 0).sum()) == 1


@every_source
@every_dtype
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_at_a_threshold_belongs_to_the_bin_below_it(source: str, dtype: torch.dtype, sign: int) -> None:
    bound, small = wish(absolute=0.25), torch.full((500,), 0.3 * sign).to(dtype)  # few steps in RMS, so no Rice code
    tables = coded(reference, small, bound)[0][32:72].clone()  # docs/format_nested.md: thresholds follow the header
    at = tables.view(torch.float32)[1:8].to(dtype)
    assert bool((at.diff() > 0.4).all())
    next_below, next_above = (at.view(PATTERN[dtype]) - 1).view(dtype), (at.view(PATTERN[dtype]) + 1).view(dtype)
    x = sign * torch.stack([next_below, at, next_above]).repeat_interleave(11, dim=1).flatten()
    restored = check_equals_reference(Kernels(source), torch.cat([x, small]), bound)[: x.numel()]
    below, exactly, above = (restored * sign).view(3, 7, 11).unbind()
    assert torch.equal(below, exactly)
    assert bool((above > exactly).all())


@every_source
@pytest.mark.parametrize("rel", [0.3, 0.5])
def test_a_restored_float16_is_never_infinite(source: str, rel: float) -> None:
    x = torch.linspace(-65504.0, 65504.0, 1000).to(torch.float16)
    restored = check_equals_reference(Kernels(source), x, wish(rel, centred=True))
    assert bool(restored.isfinite().all())
    assert float(restored.abs().max()) == 65504.0
