"""The momentum of every kind of optimizer that torch has."""

import pytest
import torch

from slimgrad.bounds.momentum import momentum_of, moves_alike

GRADIENTS = [1.0, -3.0, 2.0]


def parameter_after(make, gradients: list[float] = GRADIENTS) -> tuple[torch.optim.Optimizer, torch.nn.Parameter]:
    """Return an optimizer and its parameter of two elements, after steps with these gradients and twice their size."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = make([parameter])
    for gradient in gradients:
        parameter.grad = torch.tensor([gradient, 2 * gradient])
        optimizer.step()
    return optimizer, parameter


def test_sgd_adds_gradients_up() -> None:
    optimizer, parameter = parameter_after(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5))
    decayed = 0.25 * 1 - 0.5 * 3 + 2
    assert momentum_of(optimizer, parameter) == pytest.approx((decayed + 2 * decayed) / 2)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.RAdam])
def test_first_moments_are_means_from_the_first_step_on(kind) -> None:
    optimizer, parameter = parameter_after(lambda params: kind(params, lr=0.1, betas=(0.5, 0.99)), GRADIENTS[:1])
    assert momentum_of(optimizer, parameter) == pytest.approx(1.5)
    optimizer, parameter = parameter_after(lambda params: kind(params, lr=0.1, betas=(0.5, 0.99)))
    mean = (0.25 * 1 - 0.5 * 3 + 2) / (0.25 + 0.5 + 1)
    assert momentum_of(optimizer, parameter) == pytest.approx(1.5 * mean)


def test_each_group_has_its_own_beta() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    groups = [{"params": [first], "betas": (0.9, 0.99)}, {"params": [second], "betas": (0.1, 0.99)}]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    for parameter in (first, second):
        parameter.grad = torch.ones(2)
    optimizer.step()
    assert momentum_of(optimizer, first) == pytest.approx(1.0)
    assert momentum_of(optimizer, second) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1),
        lambda params: torch.optim.Adagrad(params, lr=0.1),
        lambda params: torch.optim.RMSprop(params, lr=0.1),
        lambda params: torch.optim.RMSprop(params, lr=0.1, momentum=0.9),  # of gradients over their own size
    ],
    ids=["plain SGD", "Adagrad", "RMSprop", "RMSprop with momentum"],
)
def test_optimizers_without_momentum_have_none(make) -> None:
    assert momentum_of(*parameter_after(make)) is None


def test_nothing_is_known_before_the_first_step_or_of_other_parameters() -> None:
    optimizer, _ = parameter_after(lambda params: torch.optim.Adam(params), [])
    assert momentum_of(optimizer, torch.nn.Parameter(torch.zeros(2))) is None
    assert momentum_of(*parameter_after(lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), [])) is None
    assert momentum_of(None, torch.zeros(2)) is None
    assert momentum_of(optimizer, None) is None


def test_a_foreign_optimizer_without_betas_is_taken_at_its_word() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, params) -> None:
            super().__init__(params, {})

        def step(self, closure=None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["exp_avg"] = parameter.grad.clone()

    assert momentum_of(*parameter_after(Own)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("make", "alike"), [(torch.optim.SGD, False), (torch.optim.AdamW, True), (torch.optim.RMSprop, True)]
)
def test_optimizers_that_divide_gradients_by_their_size_are_known(make, alike):
    assert moves_alike(make([torch.nn.Parameter(torch.zeros(1))], lr=0.1)) is alike
    assert not moves_alike(None)
