"""Plans are looked up once per site, and anew when a bound has moved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad import Compress, Noise, Swap
from slimgrad.plans import Plans
from slimgrad.roles import Need, Role
from slimgrad.saved import Stored

ROLE = Role("conv input", Need.VALUES)


def first(plans: Plans, number: int = 1):
    x = torch.randn(64, 64)
    return plans.first(Stored(x, x.untyped_storage(), ("0", number)), ROLE, x)


def test_a_site_has_one_plan_until_a_bound_moves():
    with slimgrad.attach(nn.Sequential(nn.Linear(4, 4)), bound=Noise(0.1)) as session:
        plans = Plans(session)
        plans.begin_forward()
        known = first(plans)
        plans.begin_forward()
        assert first(plans) is known
        assert first(plans, 2) is not known
        (bound,) = session.tuning.states
        session.tuning.states[bound] = {**session.tuning.states[bound], "sites": {"0#1": {"rel": 0.125}}}
        plans.begin_forward()
        moved = first(plans)
    assert (known.bound, moved.bound) == (slimgrad.Relative(0.25), slimgrad.Relative(0.125))
    assert moved.plan.bound == slimgrad.Relative(0.125)


@pytest.mark.parametrize(("policy", "is_remembered"), [(Compress(), True), (Swap(), False)], ids=["compress", "swap"])
def test_only_policies_that_look_at_nothing_else_are_asked_once(policy, is_remembered):
    with slimgrad.attach(nn.Sequential(nn.Linear(4, 4)), bound=slimgrad.Relative(0.5), policy=policy) as session:
        plans = Plans(session)
        assert (first(plans) is first(plans)) == is_remembered
