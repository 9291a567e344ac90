"""What pack hands to autograd: one Stored per storage and version, and tensors that come back as they were."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from slimgrad import Relative
from slimgrad.errors import ChangedInPlace
from slimgrad.roles import Need, Role
from slimgrad.saved import Kept, Saved, Stored, find, is_plain

VALUES = Role("conv input", Need.VALUES)
EXACT = Role("exact", Need.EXACT)


def stored_of(tensor):
    return Stored(tensor, tensor.untyped_storage(), ("layer", 1))


def test_views_of_one_storage_find_the_same_stored():
    x = torch.randn(100)
    stored = stored_of(x)
    assert find(x[10:20], x.untyped_storage()) is stored
    assert find(torch.randn(100), torch.randn(100).untyped_storage()) is None


def test_a_later_version_is_another_tensor():
    x = torch.randn(100)
    stored = stored_of(x)
    x.add_(1)
    assert find(x, x.untyped_storage()) is not stored


def test_a_stored_dies_with_its_savers_although_the_storage_lives():
    x = torch.randn(100)
    reference = weakref.ref(stored_of(x))
    gc.collect()
    assert reference() is None
    assert find(x, x.untyped_storage()) is None


def test_a_view_comes_back_with_its_strides():
    x = torch.randn(6, 8)
    view = x.t()[1:5, ::2]
    saved = Saved(stored_of(x), view, False)
    again = saved.view_of(x.flatten())
    assert torch.equal(again, view)
    assert again.stride() == view.stride()


def test_a_kept_tensor_that_changed_is_refused():
    x = torch.randn(10)
    kept = Kept(x)
    assert kept.restore().data_ptr() == x.data_ptr()
    x.mul_(2)
    with pytest.raises(ChangedInPlace, match="modified by an inplace operation"):
        kept.restore()


def test_a_guard_follows_the_version_without_the_memory():
    x = torch.randn(1000)
    storage = weakref.ref(x.untyped_storage())
    stored = stored_of(x)
    stored.watch(x)
    stored.check(x.shape)
    x.add_(1)
    with pytest.raises(ChangedInPlace):
        stored.check(x.shape)
    del x
    gc.collect()
    assert storage() is None


def test_nothing_is_missing_for_a_shape_and_everything_for_values():
    stored = stored_of(torch.randn(100))
    assert stored.missing(Role("pool input", Need.SHAPE), Relative(0.5)) is None
    assert stored.missing(VALUES, Relative(0.5)) is VALUES
    stored.keep(torch.randn(100))
    assert stored.missing(EXACT, Relative(0.5)) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(10),
        torch.zeros(100, 100).to_sparse(),
        torch.zeros(1).expand(100_000),
        torch.zeros(5000).conj_physical()[:1],
    ],
    ids=["small", "sparse", "expanded", "one value"],
)
def test_what_is_not_plain_memory_of_some_size(tensor):
    assert not is_plain(tensor, 4096) or tensor.untyped_storage().nbytes() >= 4096
