"""Models and loops that plain PyTorch trains: sparse weights, objects as results, graphs that are run in parts."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import slimgrad
from slimgrad.bounds.base import Reader, Reading, SiteReading
from slimgrad.session import Session


class SparseWeight(nn.Module):
    def __init__(self, layout: torch.layout, how: str) -> None:
        super().__init__()
        weight = torch.randn(64, 64) * (torch.rand(64, 64) < 0.3)
        self.first, self.how = nn.Linear(64, 64), how
        self.weight = nn.Parameter(weight.to_sparse() if layout is torch.sparse_coo else weight.to_sparse_csr())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return F.linear(h, self.weight) if self.how == "linear" else torch.sparse.mm(self.weight, h)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("how", ["linear", "mm"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_weights_may_be_sparse(layout: torch.layout, how: str) -> None:
    model, x = SparseWeight(layout, how), torch.randn(64, 64)
    with slimgrad.attach(model):
        for _ in range(7):
            model.zero_grad()
            model(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


def test_what_a_checkpoint_runs_again_within_backward_is_no_new_step() -> None:
    model, x = Checkpointed(), torch.randn(64, 64, requires_grad=True)
    with slimgrad.attach(model) as session:
        for _ in range(7):
            model(x).square().sum().backward()
        session.state_dict()
        assert session.progress.n_steps == 7


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        assert ctx.saved_tensors
        return 2 * grad


@pytest.mark.parametrize("last", [lambda x: x[torch.arange(64).flip(0)], Doubled.apply])
def test_what_a_first_backward_has_freed_is_not_measured_in_a_second(last) -> None:
    maker, judge = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    with slimgrad.attach(judge) as session:
        for _ in range(7):
            made = last(maker(torch.randn(64, 64)))
            judge(made).sum().backward()
            judge(made).square().sum().backward(inputs=list(judge.parameters()))
        (state,) = session.tuning.states.values()
        assert any(entry["own"]["n"] for entry in state["sites"].values())
    assert all(parameter.grad.isfinite().all() for parameter in (*maker.parameters(), *judge.parameters()))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.net(x), 1.0)


def test_errors_are_measured_behind_a_result_that_is_an_object() -> None:
    model, x = Policy(), torch.randn(64, 64)
    with slimgrad.attach(model) as session:
        for _ in range(7):
            (-model(x).log_prob(x)).sum().backward()
        (state,) = session.tuning.states.values()
        assert state["sites"]


class ComplexView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)
        self.weight = nn.Parameter(torch.randn(32, 32, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(self.norm(self.first(x)).view(-1, 32, 2)) @ self.weight)


def test_a_complex_view_of_a_norms_result_is_stored_as_it_is() -> None:
    model, x = ComplexView(), torch.randn(64, 64)
    model(x).square().sum().backward()
    exact = model.weight.grad.clone()
    with slimgrad.attach(model):
        model.zero_grad()
        model(x).square().sum().backward()
    assert (model.weight.grad - exact).norm() < 0.2 * exact.norm()


def test_sessions_that_have_ended_are_not_kept_by_the_model() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(32, 64)
    before = {id(one) for one in gc.get_objects() if type(one) is Session}
    for _ in range(3):
        with slimgrad.attach(model):
            model(x).sum().backward()
    gc.collect()
    assert [one for one in gc.get_objects() if type(one) is Session and id(one) not in before] == []


class Wrapper:
    """As schedulers and mixed-precision tools have them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.optimizer.step()


@pytest.mark.parametrize("bound", [slimgrad.Noise(0.05), slimgrad.Comet()])
def test_an_optimizer_may_be_a_wrapper_that_shows_little(bound: object) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(4, 3, 16, 16)
    optimizer = Wrapper(torch.optim.Adam(model.parameters()))
    with slimgrad.attach(model, bound=bound, optimizer=optimizer) as session:
        for _ in range(3):
            model(x).square().sum().backward()
            optimizer.step()
        assert session.state_dict()["bounds"][repr(bound)]["sites"]


def test_sizes_may_be_numbers_of_numpy() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 16, 3), nn.MaxPool2d(np.int64(2))), torch.randn(4, 3, 32, 32)
    model(x).sum().backward()
    exact = model[0].bias.grad.clone()
    model.zero_grad()
    with slimgrad.attach(model):
        model(x).sum().backward()
    assert torch.equal(model[0].bias.grad, exact)


def test_an_empty_batch_goes_through_a_group_norm() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.ReLU())
    with slimgrad.attach(model, min_bytes=0):
        result = model(torch.randn(0, 4, 8, 8))
        result.sum().backward()
    assert result.shape == (0, 8, 6, 6)
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_one_infinite_gradient_does_not_make_everything_exact_for_good() -> None:
    def site(name: str, energy: float) -> SiteReading:
        reader = Reader("conv2d", in_channels=8, out_grad2=energy)
        return SiteReading((name, 1), "conv input", 0, 100_000, 10_000, 0.25, 0.25, 1.0, 0.5, readers=(reader,))

    bound = slimgrad.Noise(0.05)
    reading = Reading(1, 1.0, (site("a", math.inf), site("b", 1e-3)), layers={"a": 0.5, "b": 0.5})
    state = bound.update(bound.start(), reading)
    assert all(entry["rel"] for entry in state["sites"].values())
    assert math.isfinite(bound.noise(state))


def test_a_graph_that_nobody_runs_backward_does_not_stop_the_optimizer() -> None:
    """Under autocast, weights that are loaded between two forwards change what the first would need."""
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    with slimgrad.attach(model):
        with torch.autocast("cpu", torch.bfloat16):
            unused = model(x)
        model.load_state_dict(best)
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().sum().backward()
        optimizer.step()
        with pytest.raises(slimgrad.errors.ChangedInPlace):
            unused.float().sum().backward()
