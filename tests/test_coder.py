"""A plan made ready: the bytes that the codec writes, the layout that was saved, and never more than the storage."""

from __future__ import annotations

import pytest
import torch

from slimgrad import Compress, Relative, kernels
from slimgrad.codecs import Channels
from slimgrad.coder import Coder, Remembered, fills
from slimgrad.policy import Plan
from slimgrad.roles import Need, Role
from slimgrad.storage import Arena, Buffers, Heap

VALUES = Role("conv input", Need.VALUES)
NORMED = Role("batch norm input", Need.VALUES, axis=1, is_centred=True)
BOUND = Relative(0.25)

pytestmark = pytest.mark.skipif(kernels.active() is kernels.reference, reason="addresses are for the compiled kernels")


@pytest.fixture
def heap():
    heap = Heap()
    yield heap
    heap.close()


def plan_for(role, tensor) -> Plan:
    return Compress().plan(role, tensor, BOUND)


def random(*size, dtype=torch.float32):
    return torch.randn(*size, generator=torch.Generator().manual_seed(0)).to(dtype)


def layouts():
    yield "small", random(3, 7, 5)
    yield "pooled", random(4, 8, 32, 32)
    yield "channels last", random(4, 8, 32, 32).to(memory_format=torch.channels_last)
    yield "transposed", random(64, 300).t()
    yield "dimension of one", random(4, 1, 64, 64).to(memory_format=torch.channels_last)
    yield "half", random(4, 8, 32, 32, dtype=torch.float16)
    yield "bfloat16", random(4, 8, 32, 32, dtype=torch.bfloat16).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("role", [VALUES, NORMED], ids=["values", "channels"])
@pytest.mark.parametrize("tensor", [pytest.param(tensor, id=name) for name, tensor in layouts()])
def test_bytes_and_values_are_those_of_the_codec(heap, tensor, role):
    plan = plan_for(role, tensor)
    coder = Coder.of(plan, tensor, tensor.untyped_storage().nbytes())
    assert coder is not None
    slot = coder.encode(tensor, Arena(heap))
    assert slot is not None
    flat = tensor.as_strided((tensor.numel(),), (1,))
    count, inner = (1, 1) if role.axis is None else (tensor.shape[role.axis], max(1, tensor.stride(role.axis)))
    channels = Channels(count, inner, max(1, tensor.stride(-1)))
    payload = plan.codec.encode(flat, plan.bound, channels, lambda n: torch.empty(n, dtype=torch.uint8))
    assert torch.equal(slot.payload, payload)
    again, expected = coder.decode(slot, Buffers(heap)), torch.empty_like(flat)
    plan.codec.decode(payload, expected)
    assert (again.shape, again.stride(), again.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert again.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
    assert torch.equal(again.as_strided((tensor.numel(),), (1,)), expected)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[1:], lambda x: x[:50], lambda x: x[::2], lambda x: x[:1].expand(100, 100), lambda x: x[:0]],
    ids=["offset", "part", "gaps", "expanded", "empty"],
)
def test_a_view_that_does_not_fill_its_storage_has_no_coder(view):
    x = random(100, 100)
    assert fills(x, x.nbytes)
    assert not fills(view(x), x.nbytes), "what is decoded would be written beyond the view"
    assert Coder.of(plan_for(VALUES, x), view(x), x.nbytes) is None


def test_other_types_and_plans_without_a_code_have_no_coder():
    x = random(100, 100)
    assert Coder.of(Plan(None), x, x.nbytes) is None
    assert Coder.of(plan_for(VALUES, x)._replace(tier="disk"), x, x.nbytes) is None
    assert Coder.of(plan_for(VALUES, x)._replace(overlaps=True), x, x.nbytes) is None
    assert Coder.of(plan_for(VALUES, x), x.double(), 2 * x.nbytes) is None
    assert Coder.of(plan_for(VALUES, x)._replace(row=3), x, x.nbytes) is None, "its rows are not of this length"


def test_what_does_not_become_smaller_has_no_slot(heap):
    noise = torch.full((5000,), 7, dtype=torch.int32).view(torch.float32)
    noise = noise + random(5000) * 1e30
    plan = Compress().plan(VALUES, noise, Relative(1e-9))
    coder, arena = Coder.of(plan, noise, noise.nbytes), Arena(heap)
    assert coder is not None
    assert coder.encode(noise, arena) is None
    assert arena.nbytes_live == 0


def test_a_coder_is_remembered_until_another_form_comes():
    x = random(4, 8, 16, 16)
    remembered = Remembered(BOUND, plan_for(NORMED, x))
    first = remembered.coder_for(x, x.nbytes)
    assert first is not None
    assert remembered.coder_for(x.clone(), x.nbytes) is first
    other = x.to(memory_format=torch.channels_last)
    second = remembered.coder_for(other, x.nbytes)
    assert second is not None
    assert second is not first, "channels lie elsewhere"
    assert remembered.coder_for(random(2, 8, 16, 16), x.nbytes // 2) not in (None, first, second)
