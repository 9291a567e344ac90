"""A centred code with edges: every value comes back on its side of its channel's edge, within the bound."""

from __future__ import annotations

import pytest
import torch
from kernel_sources import Kernels, every_source, room

from slimgrad.kernels import reference
from slimgrad.kernels.reference import nested_choice
from slimgrad.kernels.reference.nested_choice import NestedWish

LAYOUTS = {"channels first": (7, 300), "channels last": (7, 1), "one channel": (1, 1), "many channels last": (600, 1)}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def coded(kernels, x: torch.Tensor, wish: NestedWish, edges: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    payload = room(x.numel() * 5 + 8192)
    payload = payload[: kernels.pack_nested(x, wish, payload, edges)]
    restored = torch.full_like(x, 77.0)
    kernels.unpack_nested(payload, restored)
    return payload, restored


def values(layout: str) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """Return values whose channels differ in mean and scale, the channel of each, and how channels lie in memory."""
    channels, inner = LAYOUTS[layout]
    generator = torch.Generator().manual_seed(0)
    n = channels * inner * max(1, 16800 // (channels * inner))
    channel = torch.arange(n) // inner % channels
    mean, scale = torch.randn(2, channels, generator=generator)
    return torch.randn(n, generator=generator) * scale.abs()[channel] + mean[channel], channel, (channels, inner)


@every_source
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rel", [0.01, 0.4, 2.0])
def test_values_come_back_on_their_side_of_the_edge(source, layout, dtype, rel):
    x, channel, form = values(layout)
    x = x.to(dtype)
    edges = torch.linspace(-2.0, 2.0, form[0])
    wish = NestedWish(*form, True, True, rel, 0.0)
    payload, restored = coded(Kernels(source), x, wish, edges)
    expected, _ = coded(reference, x, wish, edges)
    assert torch.equal(payload, expected)
    grain = torch.finfo(dtype).eps * 4  # what lies so near to the edge may be rounded to either side
    clear = (x.float() - edges[channel]).abs() > grain * (1.0 + x.float().abs())
    assert torch.equal((restored.float() > edges[channel])[clear], (x.float() > edges[channel])[clear])
    rms = torch.stack([x[channel == c].float().std(correction=0) for c in range(form[0])])
    assert float(((restored.float() - x.float()).abs() / rms[channel]).max()) < rel * 1.3  # the RMS is that of a sample


def maps() -> tuple[torch.Tensor, torch.Tensor, NestedWish]:
    """Return so many values that steps come from a sample, the channel of each, and a wish for them."""
    wish = NestedWish(48, 256, True, True, 0.3, 0.0)
    channel = torch.arange(32 * wish.channels * wish.inner) // wish.inner % wish.channels
    x = torch.randn(channel.numel(), generator=torch.Generator().manual_seed(0))
    return x * torch.logspace(-3, 2, wish.channels)[channel], channel, wish


@every_source
def test_steps_from_a_sample_are_those_of_each_channel(source):
    x, channel, wish = maps()
    edges = torch.logspace(-3, 2, wish.channels)
    payload, restored = coded(Kernels(source), x, wish, edges)
    assert torch.equal(payload, coded(reference, x, wish, edges)[0])
    error2, energy = (torch.zeros(wish.channels).index_add_(0, channel, v.square()) for v in (restored - x, x))
    relative = torch.sqrt(error2 / energy) / wish.rel  # of errors between -1 and 1 it is 0.577
    assert 0.4 < float(relative.min()) < float(relative.max()) < 0.75


@every_source
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_constant_channel_is_exact_whatever_its_edge(source, value):
    """A batch norm divides it by sqrt(its eps): as near to the edge as others may be is too far from its mean."""
    x, channel, wish = maps()
    x[channel == 5] = value
    is_unseen = torch.ones_like(x, dtype=torch.bool).index_fill_(0, nested_choice._sampled(x.numel(), wish), False)
    x[torch.nonzero(is_unseen & (channel == 5)).flatten()[::700]] = value - 0.1
    _, restored = coded(Kernels(source), x, wish, torch.full((wish.channels,), value + 0.01))
    assert torch.equal(restored[channel == 5], x[channel == 5])


@every_source
def test_without_a_number_an_edge_is_left_out(source):
    x, _, form = values("channels last")
    wish = NestedWish(*form, True, False, 0.5, 0.0)
    plain, _ = coded(Kernels(source), x, wish, torch.full((form[0],), float("nan")))
    far, _ = coded(Kernels(source), x, wish, torch.full((form[0],), 1e30))
    assert torch.equal(plain, far)
    moved, _ = coded(Kernels(source), x, wish, torch.full((form[0],), 0.1))
    assert not torch.equal(plain, moved)


@every_source
def test_codes_that_keep_signs_mind_no_edges(source):
    x, _, form = values("channels last")
    wish = NestedWish(*form, False, False, 0.5, 0.0)
    plain, _ = coded(Kernels(source), x, wish, None)
    assert torch.equal(plain, coded(Kernels(source), x, wish, torch.full((form[0],), 0.1))[0])


@pytest.mark.parametrize("edge", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("rel", [0.05, 0.2, 0.35, 0.5])
def test_an_edge_takes_a_fifth_of_a_bit_at_most(rel, edge):
    x = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0))
    wish = NestedWish(1, 1, True, True, rel, 0.0)
    without, within = (coded(Kernels("portable"), x, wish, edges)[0] for edges in (None, torch.tensor([edge])))
    assert 8 * (within.numel() - without.numel()) <= 0.21 * x.numel()


@every_source
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_edges", [False, True])
def test_a_value_that_many_neighbours_share_comes_back_nearly_as_it_was(source, dtype, has_edges):
    x, channel, wish = maps()
    wish = wish._replace(rel=0.5)
    x = x.view(32, wish.channels, 16, 16)
    background = torch.randn(wish.channels, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 2, 48)
    x[:, :, 1:11] = background[:, None, None]  # ten rows of sixteen, beside an edge that is even as well
    x[:, :, 0] = 2.0 * background[:, None]
    x = x.reshape(-1).to(dtype)
    edges = torch.linspace(-1.0, 1.0, wish.channels) * torch.logspace(-3, 2, wish.channels) if has_edges else None
    payload, restored = coded(Kernels(source), x, wish, edges)
    assert torch.equal(payload, coded(reference, x, wish, edges)[0])
    rms = torch.stack([x[channel == c].float().std(correction=0) for c in range(wish.channels)])
    error = (restored.float() - x.float()).view(32, wish.channels, 256)
    assert float((error.abs() / rms[:, None]).max()) < 0.5 * 1.6  # the RMS is that of a few rows
    off = (error[0, :, 16] / rms).abs()  # of the background, where its step is 1 RMS
    assert float(off.max()) < (0.2 if has_edges else 0.01)
    assert float(off.median()) < 0.01


def test_values_that_differ_have_nothing_usual():
    x, _, wish = maps()
    assert torch.isnan(nested_choice._usual(x, wish)).all()
    x.view(32, wish.channels, 256)[:, 7, 64:128] = 3.0
    assert torch.nonzero(torch.isfinite(nested_choice._usual(x, wish))).flatten().tolist() == [7]
