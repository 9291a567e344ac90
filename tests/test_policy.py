"""Policies: a role and a bound give a plan, without a look at the values."""

from __future__ import annotations

import pytest
import torch

import slimgrad
from slimgrad import Absolute, Compress, Exact, Relative, Swap
from slimgrad.codecs import Nested, Raw, Zvc
from slimgrad.errors import ConfigError, UnknownCodec
from slimgrad.policy import check_policy, stricter
from slimgrad.roles import EXACT, UNKNOWN, Need, Role
from slimgrad.storage import Freed

X = torch.randn(4, 8, 16, 16)
HALF = Relative(0.5)
VALUES = Role("conv input", Need.VALUES)
SPARSE = Role("relu result", Need.VALUES, is_sparse=True)
CENTRED = Role("norm input", Need.VALUES, axis=1, is_centred=True)
TIGHT = Role("query", Need.TIGHT, scale=1 / 64)


def test_values_are_coded_under_the_bound():
    plan = Compress().plan(VALUES, X, Relative(0.5))
    assert plan.codec == Nested(centred=False, sampled=True)
    assert plan.bound == Relative(0.5)
    assert plan.keeps_sign


def test_a_centred_role_is_coded_around_its_channels():
    plan = Compress().plan(CENTRED, X, Relative(0.5))
    assert plan.codec == Nested(centred=True, sampled=True)
    assert plan.axis == 1
    assert not plan.keeps_sign


def test_a_tight_role_gets_a_smaller_bound():
    assert Compress().plan(TIGHT, X, Relative(0.5)).bound.eps(1.0) == pytest.approx(0.5 / 64)


def test_exact_codes_only_what_is_sparse_by_construction():
    assert isinstance(Compress().plan(SPARSE, X, Exact()).codec, Zvc)
    assert Compress().plan(VALUES, X, Exact()).codec is None


def test_unknown_and_exact_roles_stay_as_they_are_for_different_reasons():
    unknown, exact = (Compress().plan(role, X, Relative(0.5)) for role in (UNKNOWN, EXACT))
    assert unknown.codec is None
    assert exact.codec is None
    assert unknown.reason != exact.reason


def test_integers_have_no_lossy_code():
    assert Compress().plan(VALUES, torch.ones(5000, dtype=torch.int32), Relative(0.5)).codec is None


def test_another_codec_can_be_asked_for_and_is_checked_at_once():
    assert Compress("cast").plan(VALUES, X, Relative(0.5)).codec.name == "cast"
    with pytest.raises(UnknownCodec, match="nested"):
        Compress("nestd")


def test_the_stricter_of_two_bounds():
    assert stricter(Relative(0.5), Relative(0.1)) == Relative(0.1)
    assert stricter(Absolute(1.0), Absolute(3.0)) == Absolute(1.0)
    assert stricter(Absolute(1.0), Relative(0.5)) == Exact()


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="Compress"):
        check_policy("swap")


class TestSwap:
    """What leaves, and in which form."""

    BIG = torch.randn(1 << 19)

    def plan(self, swap: Swap, role: Role = VALUES, x: torch.Tensor = BIG, bound: Relative | Exact = HALF):
        return swap.plan(role, x, bound)

    def test_coded_as_compress_does(self):
        plan = self.plan(Swap("disk"))
        assert plan == Compress().plan(VALUES, self.BIG, Relative(0.5))._replace(tier="disk")
        assert self.plan(Swap("host", overlap=True)).overlaps

    def test_small_tensors_stay(self):
        small = torch.randn(1000)
        assert self.plan(Swap("disk"), x=small) == Compress().plan(VALUES, small, Relative(0.5))
        assert self.plan(Swap("disk", compress=False), x=small).codec is None
        assert self.plan(Swap("disk", min_bytes=4000), x=small).tier == "disk"

    def test_without_compression_everything_leaves_as_it_is(self):
        for role in (VALUES, SPARSE, UNKNOWN):
            plan = self.plan(Swap("disk", compress=False), role)
            assert (type(plan.codec), plan.tier) == (Raw, "disk")

    def test_what_no_code_serves_leaves_as_it_is(self):
        plan = self.plan(Swap("disk"), UNKNOWN)
        assert type(plan.codec) is Raw and plan.tier == "disk"
        assert self.plan(Swap("disk"), VALUES, bound=Exact()).tier == "disk"
        assert self.plan(Swap("host"), UNKNOWN).codec is None, "a copy in the same memory helps nobody"

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"tier": "tape"}, "tier='host' or tier='disk'"),
            ({"min_bytes": -1}, "number of bytes"),
            ({"min_bytes": 0.5}, "number of bytes"),
            ({"fraction": 0.0}, "0 < fraction <= 1"),
            ({"fraction": 1.5}, "0 < fraction <= 1"),
        ],
    )
    def test_refused(self, options, message):
        with pytest.raises(ConfigError, match=message):
            Swap(**options)

    def test_no_policy_at_all(self):
        for wrong in ("swap", Swap, None):
            with pytest.raises(ConfigError, match="Compress"):
                check_policy(wrong)
        check_policy(Swap())


@pytest.mark.parametrize("give_back", [-1, 0.5, "256MiB"])
def test_compress_refuses_what_is_no_number_of_bytes(give_back):
    with pytest.raises(ConfigError, match="give_back"):
        Compress(give_back=give_back)


def test_a_session_gives_back_as_often_as_its_policy_says(monkeypatch):
    calls = []
    monkeypatch.setattr(Freed, "trim", staticmethod(calls.append))
    for give_back, at_least in ((0, 0), (4096, 2)):
        calls.clear()
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        with slimgrad.attach(model, policy=Compress(give_back=give_back)):
            model(torch.randn(64, 64)).sum().backward()
        assert len(calls) >= at_least and bool(calls) == bool(give_back)
