"""A plan that cannot be made is not in the way."""

from __future__ import annotations

import torch
from torch import nn

from slimgrad import Budget, Relative, attach


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
