"""Recorded steps: what layers saw is right, and replaced tensors reach exactly the gradients that read them."""

import pytest
import torch
from torch import nn

from slimgrad.lab.replay import Step, record, replay


def small_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 25, 3),
    )


@pytest.fixture(scope="module")
def step() -> Step:
    with torch.random.fork_rng(devices=[]):
        model = small_net()
        x, y = torch.randn(7, 1, 10, 10), torch.tensor([0, 1, 2, 0, 1, 2, 0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def loss() -> torch.Tensor:
            return nn.functional.cross_entropy(model(x), y)

        for _ in range(3):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        return record(model, loss, optimizer)


def test_each_storage_is_recorded_once_with_its_word(step: Step) -> None:
    found = [(recorded.site[0], recorded.word, recorded.is_signed_for) for recorded in step.tensors]
    assert found == [("1", "norm", False), ("3", "conv", True), ("6", "linear", True)]
    assert [tuple(recorded.tensor.shape) for recorded in step.tensors] == [(7, 4, 10, 10), (7, 4, 10, 10), (7, 150)]


def test_exact_tensors_change_nothing(step: Step) -> None:
    found = replay(step, {recorded.site: recorded.tensor.clone() for recorded in step.tensors})
    assert (found.noise, found.worst) == (0.0, 0.0)


def test_an_error_in_a_convolutions_input_is_the_error_of_its_weight(step: Step) -> None:
    recorded = step.tensors[1]
    error = torch.randn(recorded.tensor.shape, generator=torch.Generator().manual_seed(1))
    found = replay(step, {recorded.site: recorded.tensor + error})
    gy = gradient_of_output(step, 3)
    expected = float(nn.grad.conv2d_weight(error, (6, 4, 3, 3), gy, stride=2, padding=1).double().square().sum())
    assert found.noise == pytest.approx(expected / step.energy, rel=1e-4)
    assert found.layers["3"] == pytest.approx(expected, rel=1e-4)
    assert found.worst == pytest.approx(expected / step.layers["3"], rel=1e-4)
    assert {layer for layer, error2 in found.layers.items() if error2} == {"3"}


def gradient_of_output(step: Step, number: int) -> torch.Tensor:
    assert isinstance(step.model, nn.Sequential)
    kept: list[torch.Tensor] = []
    handle = step.model[number].register_forward_hook(lambda module, args, y: y.register_hook(kept.append) and None)
    step.loss().backward()
    handle.remove()
    return kept[0]


def test_readers_have_seen_their_gradients(step: Step) -> None:
    norm, second, linear = (site.readers[0] for site in step.reading.sites)
    grad = step.gradients[4]
    assert (norm.function, second.function, linear.function) == ("batch_norm", "conv2d", "linear")
    assert (second.batch, second.in_channels, second.out_channels, second.taps, second.places) == (7, 4, 6, 9, 25)
    assert second.stride == 4
    assert linear.places == 1
    assert second.weight == "3.weight"
    assert second.weight_grad2 == pytest.approx(float(grad.square().sum()), rel=1e-5)
    assert norm.in_grad2 == pytest.approx(float(gradient_of_output(step, 0).square().sum()), rel=1e-5)
    assert all(reader.momentum is not None and reader.momentum > 0 for reader in (norm, second, linear))


def test_a_norms_channels(step: Step) -> None:
    norm = step.reading.sites[0].readers[0].norm
    assert norm is not None
    x = step.tensors[0].tensor
    std = x.transpose(0, 1).flatten(1).std(1, unbiased=False)
    assert torch.tensor(norm.inv_std) == pytest.approx((std**2 + 1e-5).rsqrt(), rel=1e-4)
    assert norm.weight_grad == tuple(step.gradients[2].tolist())
    assert max(norm.n_grads) <= x.numel() // 4
