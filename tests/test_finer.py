"""What a code has left out: how near the original it brings what was coded, how large it is, when there is none."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.bounds.turns import LEFT_OUT_BITS
from slimgrad.finer import Finer
from slimgrad.local_errors import exactly
from slimgrad.measure import Meter, Probe
from slimgrad.shelf import Shelf
from slimgrad.streams import saved_of
from slimgrad.tiers import restored

BOUND = slimgrad.Relative(0.5)


@pytest.fixture
def noted(monkeypatch):
    """Return what a session stores, with the tensors, of all that it codes."""
    seen = []
    monkeypatch.setattr(Meter, "note", lambda self, stored, tensor, bound: seen.append((stored, tensor)))
    monkeypatch.setattr(Meter, "watch", lambda self, result: None)
    return seen


def run(layer: nn.Module, x: torch.Tensor, bound=BOUND):
    torch.manual_seed(0)
    session = slimgrad.attach(layer, bound=bound, min_bytes=64)
    session.tuning.meter.is_on = True
    return session, layer(x * torch.ones((), requires_grad=True))


@pytest.mark.parametrize(
    ("layer", "size"),
    [(lambda: nn.Conv2d(4, 4, 3), (8, 4, 16, 16)), (lambda: nn.BatchNorm2d(4), (8, 4, 16, 16)), (nn.GELU, (64, 64))],
    ids=["conv", "centred by channel", "gelu"],
)
@pytest.mark.parametrize("bound", [BOUND, slimgrad.Absolute(0.25)], ids=["relative", "absolute"])
def test_with_it_a_tenth_of_the_error_is_left(noted, layer, size, bound):
    torch.manual_seed(0)
    session, result = run(layer(), torch.randn(*size), bound)
    with session:
        ((stored, tensor),) = noted
        finer, original = Finer.of(stored, tensor), tensor.detach().reshape(-1)
        coded = restored(stored.values.codec, stored.values.slot, stored.form, stored.shelf.buffers)
        left_out, found = original - coded, finer.values() - coded
        assert 0.0 < float((left_out - found).square().sum()) < 0.15 * float(left_out.square().sum())
        assert float(found.square().sum()) == pytest.approx(float(left_out.square().sum()), rel=0.12)
        del result  # before the session ends


def test_it_takes_less_than_two_bits_per_value(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(32, 4, 32, 32))
    with session:
        ((stored, tensor),) = noted
        used = stored.shelf.arena.nbytes_live
        finer = Finer.of(stored, tensor)
        assert finer is not None
        assert (stored.shelf.arena.nbytes_live - used) * 8 <= LEFT_OUT_BITS * tensor.numel()
        del result


def test_what_another_node_will_read_is_decoded_once(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(8, 4, 16, 16))
    with session:
        ((stored, tensor),) = noted
        finer = Finer.of(stored, tensor)
        assert finer is not None
        first, again, anew = finer.values(is_for_more=True), finer.values(), finer.values()
        assert first is again is not anew
        assert torch.equal(again, anew)
        assert not finer.is_held
        del result


def test_while_the_original_is_in_place_its_code_is_decoded_for_who_reads_next(noted):
    session, result = run(nn.GELU(), torch.randn(64, 64))
    with session:
        ((stored, tensor),) = noted
        stored.probe = Probe(None, None, Finer.of(stored, tensor))
        node = result.grad_fn
        plain = restored(stored.values.codec, stored.values.slot, stored.form, stored.shelf.buffers)
        slots = [(name, raw.data) for name, raw in saved_of(node)]
        with exactly(stored, [saved for _, saved in slots]):
            assert not torch.equal(node._saved_self.reshape(-1), plain)
        decode, n_decoded = Shelf._decode, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shelf, "_decode", lambda *of: n_decoded.append(1) or decode(*of))
            assert torch.equal(node._saved_self.reshape(-1), plain)
            assert not n_decoded
            assert stored.held is None  # nobody else will read it
            assert torch.equal(node._saved_self.reshape(-1), plain)
            assert n_decoded
        del result, node, slots


def test_it_goes_with_what_holds_it(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(8, 4, 16, 16))
    with session:
        ((stored, tensor),) = noted
        used = stored.shelf.arena.nbytes_live
        finer = Finer.of(stored, tensor)
        assert stored.shelf.arena.nbytes_live > used
        del finer
        gc.collect()
        assert stored.shelf.arena.nbytes_live == used
        del result


def test_values_that_no_code_makes_small_have_none(noted):
    session, result = run(nn.Conv2d(4, 4, 3), torch.randn(8, 4, 16, 16))
    with session:
        ((stored, tensor),) = noted
        assert Finer.of(stored, torch.full_like(tensor, torch.nan)) is None
        del result
