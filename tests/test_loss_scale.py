"""What lies between backward and the optimizer is found, however many backwards come before a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad.loss_scale import LossScale

SCALE = 1024.0


def sampled(scale: LossScale) -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(4))
    scale.sample(parameter)
    return parameter


def test_nothing_is_scaled_before_anything_is_known() -> None:
    assert LossScale().value == 1.0


def test_the_scale_is_that_of_the_last_backward_before_the_step() -> None:
    scale = LossScale()
    parameter = sampled(scale)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    (1e-3 * parameter.sum()).backward()  # another loss, before the one that counts
    (SCALE * parameter.sum()).backward()
    assert parameter.grad is not None
    parameter.grad /= SCALE
    scale.before_step(optimizer)
    assert scale.value == pytest.approx(SCALE, rel=1e-4)


def test_a_fused_optimizer_unscales_by_itself() -> None:
    scale = LossScale()
    parameter = sampled(scale)
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
    (SCALE * parameter.sum()).backward()
    optimizer.grad_scale = torch.tensor(SCALE)  # as torch.amp.GradScaler does
    scale.before_step(optimizer)
    assert scale.value == pytest.approx(SCALE)


def test_an_optimizer_of_other_parameters_says_nothing() -> None:
    scale = LossScale()
    parameter = sampled(scale)
    (SCALE * parameter.sum()).backward()
    scale.before_step(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    assert scale.value == 1.0


def test_hooks_go_with_the_step() -> None:
    scale = LossScale()
    parameter = sampled(scale)
    assert parameter._post_accumulate_grad_hooks
    parameter.sum().backward()
    scale.before_step(torch.optim.SGD([parameter], lr=0.1))
    assert not parameter._post_accumulate_grad_hooks


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("n_backward", [1, 8])
def test_a_scaled_loss_gives_comet_the_bounds_of_a_plain_one(fused: bool, n_backward: int) -> None:
    """With GradScaler, several backwards per step, and a report between backward and step."""
    bounds = []
    for is_scaled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 64, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=is_scaled)
        bound = slimgrad.Comet(window=20)
        with slimgrad.attach(model, bound=bound, optimizer=optimizer, min_bytes=64) as session:
            for step in range(1, 49):
                loss = model(torch.randn(4, 3, 12, 12)).square().mean()
                scaler.scale(loss).backward()
                if step == 1:
                    session.report()
                if step % n_backward == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            state = session.tuning.states[bound]
            bounds.append(bound.at(("1", 1), state).bound.eps(1.0))
    assert bounds[1] == pytest.approx(bounds[0], rel=0.05)


def test_a_session_that_ends_leaves_no_hook() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    with slimgrad.attach(model, min_bytes=64):
        model(torch.randn(4, 3, 12, 12)).sum().backward()
    for parameter in model.parameters():
        assert not parameter._backward_hooks
        assert not parameter._post_accumulate_grad_hooks
