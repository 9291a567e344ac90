"""Predicted sizes: the curves where nothing was measured, the ledger where something was."""

from __future__ import annotations

import pytest
import torch

from slimgrad import Compress, Exact, Relative, codecs
from slimgrad.codecs import Zvc
from slimgrad.consumers import BATCH_NORM, CONV, DROPOUT, POOL_INDEX
from slimgrad.ledger import Ledger
from slimgrad.planner.rates import HEADER, Rates, bits_of
from slimgrad.policy import Plan
from slimgrad.roles import with_flags, with_zeros

SPARSE = with_zeros(with_flags(CONV))


def coded_bits(values: torch.Tensor, plan: Plan) -> float:
    blob = codecs.encode(values, plan.codec, plan.bound)
    return blob.nbytes * 8 / values.numel()


@pytest.mark.parametrize("rel", [0.02, 0.1, 0.25, 0.5])
def test_the_curves_are_those_of_the_code(rel):
    torch.manual_seed(0)
    values = torch.randn(1 << 16)
    for role, tensor in ((SPARSE, values.relu()), (CONV, values), (BATCH_NORM, values)):
        plan = Compress().plan(role, tensor, Relative(rel))
        assert bits_of(role, plan, 32) == pytest.approx(coded_bits(tensor, plan), rel=0.08), (role.name, rel)


def test_lossless_codes():
    mask, indices = torch.zeros(64, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.int64)
    assert bits_of(DROPOUT, Compress().plan(DROPOUT, mask, Exact()), 8) == 1
    assert bits_of(POOL_INDEX, Compress().plan(POOL_INDEX, indices, Exact()), 64) == 4
    relu = torch.randn(1 << 14).relu()
    assert bits_of(SPARSE, Plan(Zvc()), 32) == pytest.approx(coded_bits(relu, Plan(Zvc())), rel=0.05)


def test_a_tensor_never_grows():
    plan = Compress().plan(CONV, torch.zeros(8), Relative(1e-12))
    assert Rates().nbytes("", CONV, plan, 8, 32) == 32
    assert (
        Rates().nbytes("", SPARSE, Compress().plan(SPARSE, torch.zeros(8), Relative(0.5)), 80000, 320000) < 320000 / 15
    )


def test_what_was_measured_comes_first():
    ledger = Ledger()
    ledger.record_pack("layer1", CONV.name, "nested", 1000, 50, 0.0)
    rates = Rates.of_run(ledger.snapshot().total)
    plan = Compress().plan(CONV, torch.zeros(8), Relative(0.5))
    assert rates.nbytes("layer1", CONV, plan, 10_000, 40_000) == 2000
    assert rates.nbytes("layer2", CONV, plan, 10_000, 40_000) > HEADER + 2000
