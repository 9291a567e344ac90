"""What pack hands to autograd: one Stored per storage and version, and tensors that come back as they were."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from scenes import random

from slimgrad import Relative
from slimgrad.errors import ChangedInPlace
from slimgrad.ledger import Ledger
from slimgrad.policy import Compress
from slimgrad.roles import Comparison, Need, Role, flag_role
from slimgrad.saved import Kept, Rebuilt, Saved, Shaped, Stored, find, plain_storage
from slimgrad.shelf import Shelf

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
        torch.zeros(5000, dtype=torch.complex64).conj(),
    ],
    ids=["small", "sparse", "expanded", "conjugated"],
)
def test_what_is_not_plain_memory_of_some_size(tensor):
    assert plain_storage(tensor, 4096) is None


def test_plain_memory_counts_whole_whatever_view_of_it_is_saved():
    tensor = torch.zeros(5000)
    assert plain_storage(tensor[:1], 4096) is tensor.untyped_storage()


COARSE = Relative(0.5)
TIGHT = Role("tight", Need.TIGHT, scale=0.25)
RELU = flag_role("relu result", Comparison.NOT_BELOW, 0.0, float("inf"), torch.float32, True)
LEAKY = flag_role("leaky", Comparison.ABOVE, 0.0, float("inf"), torch.float32)


def put(shelf, stored, tensor, role, bound=COARSE):
    missing = stored.missing(role, bound)
    if missing is None:
        return
    plan = Compress().plan(stored.coded_role(missing), tensor, bound)
    shelf.put(stored, tensor, missing, plan)
    if missing.need is not Need.SIGN:
        stored.role, stored.bound = missing, bound


@pytest.fixture
def shelf():
    shelf = Shelf(Ledger())
    yield shelf
    shelf.close()


def test_equal_versions_of_different_counters_are_not_confused():
    """x and x.data count apart: both are at version 1 after different changes."""
    x = random(64, 64, grad=False)
    x.add_(1)
    stored = stored_of(x)
    other = x.data
    other.mul_(2)
    assert other._version == x._version == stored.version
    assert find(other, other.untyped_storage()) is None
    assert find(x.view(-1), x.untyped_storage()) is stored


def test_a_stored_grows_from_flags_to_values_to_all(shelf):
    x = random(64, 64, grad=False).relu()
    stored = stored_of(x)
    put(shelf, stored, x, RELU)
    flags = stored.nbytes_held
    assert stored.flags is not None and flags <= x.numel() / 8 + 16
    put(shelf, stored, x, VALUES)
    assert stored.flags is None and stored.values is not None  # the code of values keeps the signs
    assert stored.missing(RELU, COARSE) is None and stored.missing(VALUES, COARSE) is None
    coarse = stored.nbytes_held
    put(shelf, stored, x, TIGHT)
    assert stored.nbytes_held > coarse > flags
    put(shelf, stored, x, EXACT)
    assert stored.kept is not None and stored.values is None
    assert stored.missing(TIGHT, COARSE) is None


def test_two_kinds_of_flags_need_every_bit():
    x = random(64, 64, grad=False)
    stored = stored_of(x)
    stored.flag = RELU.flag
    assert stored.missing(LEAKY, COARSE).is_exact


def test_a_stricter_bound_codes_again_and_a_laxer_one_does_not(shelf):
    x = random(64, 64, grad=False)
    stored = stored_of(x)
    put(shelf, stored, x, VALUES)
    fine = Relative(0.1)
    assert stored.coded_bound(fine) == fine and stored.missing(VALUES, stored.coded_bound(fine)) is VALUES
    lax = Relative(0.9)
    assert stored.missing(VALUES, stored.coded_bound(lax)) is None


@pytest.mark.parametrize("make", ["kept", "coded", "shaped"])
def test_a_change_in_place_is_told(shelf, make):
    x = random(64, 64, grad=False)
    stored = stored_of(x)
    if make == "kept":
        saved = Kept(x)
        restore = saved.restore
    elif make == "coded":
        put(shelf, stored, x, VALUES)
        saved = Saved(stored, x, False)
        restore = lambda: shelf.fetch(saved)  # noqa: E731
    else:
        shelf.put_shape(stored, x, Role("pool input", Need.SHAPE))
        saved = Shaped(stored, x)
        restore = lambda: saved.restore_in(shelf.buffers)  # noqa: E731
    assert restore().shape == x.shape
    x[0].zero_()
    with pytest.raises(ChangedInPlace, match=r"modified by an inplace operation.*\[64, 64\].*version 1"):
        restore()


def test_coded_tensors_keep_no_original(shelf):
    x = random(64, 64, grad=False)
    stored = stored_of(x)
    put(shelf, stored, x, VALUES)
    storage = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert storage() is None


def test_a_shape_costs_no_memory_and_keeps_its_layout(shelf):
    x = random(4, 8, 6, 6, grad=False)
    for layout in (torch.contiguous_format, torch.channels_last):
        tensor = x.contiguous(memory_format=layout)
        stored = stored_of(tensor)
        shelf.put_shape(stored, tensor, Role("pool input", Need.SHAPE))
        restored = Shaped(stored, tensor).restore_in(shelf.buffers)
        assert restored.shape == x.shape and stored.nbytes_held == 0
        assert restored.is_contiguous(memory_format=layout) or layout is torch.contiguous_format
    assert restored.stride() == tensor.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_rebuilt_copy_has_the_bits_and_strides_of_the_first(layout):
    leaf = random(4, 8, 3, 3).detach().contiguous(memory_format=layout).requires_grad_()
    copy = leaf.to(torch.bfloat16)
    rebuilt = Rebuilt(copy, leaf).restore()
    assert torch.equal(rebuilt, copy) and rebuilt.stride() == copy.stride()
    with torch.no_grad():
        keeper = Rebuilt(copy, leaf)
        keeper.keep_copy()
        late = Rebuilt(copy, leaf)
        leaf.add_(1)
    assert torch.equal(keeper.restore(), copy)
    with pytest.raises(ChangedInPlace, match="autocast"):
        late.restore()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_guard_stays_on_the_device_of_its_tensor_without_its_memory(device):
    tensor = torch.zeros(5000, device=device)
    stored = Stored(tensor, tensor.untyped_storage(), ("", 1))
    stored.watch(tensor.detach())
    assert stored.guard is not None
    assert stored.guard.device == tensor.device and stored.guard.numel() == 0
    tensor.add_(1)
    with pytest.raises(ChangedInPlace):
        stored.check(tensor.shape)
