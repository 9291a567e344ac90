"""A plan that cannot be made is not in the way."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from slimgrad import Budget, Relative, attach
from slimgrad.planner.timeline import CODE, KEEP


class Branching(nn.Module):
    """Looks at values, which fake tensors do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if x.sum().item() > 0 else self.layer(-x)


class TwoInputs(Branching):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.layer(y)


def test_a_model_that_looks_at_values_gets_the_frugal_plan():
    net = Branching()
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB")) as session:
        for _ in range(2):
            net(torch.randn(256, 64)).sum().backward()
        assert session.planned.choices == {}
        assert "cannot run on fake tensors" in str(session.report())


def test_so_does_a_model_of_several_inputs():
    net = TwoInputs()
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB")) as session:
        net(torch.randn(256, 64), torch.randn(256, 64)).sum().backward()
        assert "more than one tensor" in str(session.report())


def one_step(net: nn.Module, session) -> dict:
    """Train once, and return the plan of that step."""
    net(torch.linspace(-1, 1, 64 * 64).view(64, 64)).square().sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 1e-4 * parameter.grad
            parameter.grad = None
    return dict(session.planned.choices)


@pytest.mark.parametrize("saved_after", [0, 1, 2])
def test_a_resumed_run_takes_the_plans_of_the_uninterrupted_one(saved_after: int):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    policy = Budget("1TiB", "live")
    plans, later, state = [], net, {}
    with attach(net, bound=Relative(0.5), policy=policy) as session:
        for step in range(4):
            if step == saved_after:
                state, later = session.state_dict(), copy.deepcopy(net.state_dict())
            plans.append(one_step(net, session))
    assert CODE in plans[0].values(), "the first plan is frugal"
    assert set(plans[1].values()) == {KEEP}, "the second is made from what was measured"
    resumed = copy.deepcopy(net)
    resumed.load_state_dict(later)
    with attach(resumed, bound=Relative(0.5), policy=policy) as session:
        session.load_state_dict(state)
        assert [one_step(resumed, session) for _ in range(saved_after, 4)] == plans[saved_after:]
    assert all(map(torch.equal, resumed.parameters(), net.parameters()))


def test_a_resumed_run_may_use_the_reserve_to_keep_its_plan():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB", "live")) as session:
        plans = [one_step(net, session) for _ in range(2)]
        state = session.state_dict()
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB", "live")) as session:
        session.load_state_dict(state)
        session.planned.limit = 0  # as in a process that holds more memory than the one before
        assert one_step(net, session) == plans[1] != plans[0]


def test_a_plan_without_its_costs_as_older_checkpoints_have_it_is_kept_for_a_step():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB", "live")) as session:
        first = one_step(net, session)
        state = session.state_dict()
    state["plan"] = {"choices": [(*site, choice) for site, choice in first.items()], "key": [[64, 64]]}
    with attach(net, bound=Relative(0.5), policy=Budget("1TiB", "live")) as session:
        session.load_state_dict(state)
        assert one_step(net, session) == first
        assert set(one_step(net, session).values()) == {KEEP}
