"""Errors of gradients on their way to the parameters: they arrive as they would if they were in the gradient."""

from __future__ import annotations

import pytest
import torch
from scenes import Calls, same
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from slimgrad.products import WORTH_IT, Signs
from slimgrad.streams import ALL_LAYERS, Streams, call, can_be_called, energy, saved_of

STREAM = "error"


class Tied(nn.Module):
    """A residual branch, a weight used twice, a broadcast parameter, a view and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.twice, self.place = nn.Linear(6, 6), nn.Parameter(torch.randn(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.conv(x)))
        x = x + F.gelu(x)
        x = x.flatten(2).transpose(1, 2)[:, :4] * self.place
        return self.twice(torch.tanh(self.twice(x))).mean(1)


def run(
    model: nn.Module, x: torch.Tensor, error: torch.Tensor | None, as_stream: bool, layers: float = ALL_LAYERS,
    signs: Signs | None = None,
):  # fmt: skip
    """Return the gradients of all parameters, and the streams."""
    model.zero_grad(set_to_none=True)
    result = model(x)
    streams = Streams({id(parameter): name for name, parameter in model.named_parameters()}, signs)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        parameter.register_hook(lambda grad, name=name: streams.settle(name))
    if error is not None and as_stream:
        streams.add(result.grad_fn, 0, STREAM, error, layers)
    elif error is not None:
        result.register_hook(lambda grad: grad + error)
    result.square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in trained.items()}, streams


@pytest.fixture
def scene():
    torch.manual_seed(0)
    return Tied().double(), torch.randn(5, 3, 6, 6).double(), torch.randn(5, 6).double()


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_an_error_is_followed_through_so_many_layers(n_layers):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten()).double()
    x, error = torch.randn(5, 3, 8, 8).double(), torch.randn(5, 32).double()
    _, whole = run(model, x, error, True)
    _, near = run(model, x, error, True, n_layers)
    reached = {
        name: value for name, value in whole.energies()[STREAM].items() if int(name[0]) >= (3, 1, 0)[n_layers - 1]
    }
    assert near.energies()[STREAM] == pytest.approx(reached)


@pytest.mark.parametrize("frozen", ["", "1.weight", "1.bias"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)], ids=str)
def test_an_error_ends_in_a_linear_layer_as_it_would_on_its_way(shape, frozen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != frozen)
    x, error = torch.randn(shape).double(), torch.randn(*shape[:-1], 3).double()
    _, whole = run(model, x, error, True)
    _, near = run(model, x, error, True, layers=1)
    of_last = {name: value for name, value in whole.energies()[STREAM].items() if name[0] == "1"}
    assert near.energies()[STREAM] == pytest.approx(of_last)
    assert len(of_last) == 2 - bool(frozen)


def test_a_convolution_that_keeps_channels_apart_does_not_count_as_a_layer():
    torch.manual_seed(0)
    depthwise = nn.Conv2d(4, 4, 3, groups=4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), depthwise, nn.Flatten()).double()
    x, error = torch.randn(5, 3, 8, 8).double(), torch.randn(5, 64).double()
    _, near = run(model, x, error, True, layers=1)
    assert {name[0] for name in near.energies()[STREAM]} == {"1", "3"}


class Shortcuts(nn.Module):
    """Residual blocks, whose number of ways doubles with each."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(n_blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 6])
def test_what_goes_so_many_layers_ends_behind_two_forks(n_blocks):
    torch.manual_seed(0)
    model, x = Shortcuts(n_blocks).double(), torch.randn(5, 6, requires_grad=True).double()
    error = torch.randn(5, 6).double()
    _, whole = run(model, x, error, True)
    _, near = run(model, x, error, True, layers=1)
    reached = {name for name in whole.energies()[STREAM] if int(name.split(".")[1]) >= n_blocks - 2}
    assert near.energies()[STREAM].keys() == reached
    last = f"blocks.{n_blocks - 1}.weight"
    assert near.energies()[STREAM][last] == pytest.approx(whole.energies()[STREAM][last])


def test_ways_that_meet_are_one_again(monkeypatch):
    """Each node is crossed once, however many ways lead to it: one linear layer, tanh and sum per block, and views."""
    calls, cross = [], Streams.cross
    monkeypatch.setattr("slimgrad.streams.call", lambda node, errors: calls.append(node.name()) or call(node, errors))
    monkeypatch.setattr(Streams, "cross", lambda *of: calls.append(of[1].kind) or cross(*of))
    torch.manual_seed(0)
    for n_blocks in (4, 8):
        calls.clear()
        x = torch.randn(5, 6, requires_grad=True)
        run(Shortcuts(n_blocks), x, torch.randn(5, 6), True)
        assert calls.count("TanhBackward0") == calls.count("AddBackward0") == calls.count("AddmmBackward0") == n_blocks


def test_what_arrives_is_what_the_error_does_to_the_gradient(scene):
    model, x, error = scene
    exact, _ = run(model, x, None, False)
    wrong, _ = run(model, x, error, False)
    _, streams = run(model, x, error, True)
    arrived = streams.energies()[STREAM]
    assert arrived.keys() == exact.keys()
    for name, grad in exact.items():
        expected = float((wrong[name] - grad).square().sum())
        assert arrived[name] == pytest.approx(expected, rel=1e-9, abs=1e-20), name


def test_the_gradients_stay_as_they_are_bit_for_bit(scene):
    model, x, error = scene
    exact, _ = run(model, x, None, False)
    followed, _ = run(model, x, error, True)
    assert same(list(exact.values()), list(followed.values()))


def test_errors_under_one_name_add_up_and_names_stay_apart(scene):
    model, x, error = scene
    result = model(x)
    streams = Streams({id(model.twice.bias): "bias"})
    model.twice.bias.register_hook(lambda grad: streams.settle("bias"))
    for name, factor in (("a", 1.0), ("a", 2.0), ("b", 1.0)):
        streams.add(result.grad_fn, 0, name, factor * error)
    result.sum().backward()
    found = streams.energies()
    assert found["a"]["bias"] == pytest.approx(9 * found["b"]["bias"])


def test_a_graph_that_is_never_run_holds_its_errors_alone(scene):
    model, x, error = scene
    result = model(x)
    streams = Streams({})
    streams.add(result.grad_fn, 0, STREAM, error)
    assert result.grad_fn.metadata[streams.waiting]
    assert streams.energies() == {}


def test_an_error_does_not_wait_at_views_but_behind_them():
    x = torch.randn(4, 6, requires_grad=True)
    last = (2.0 * x).view(2, 2, 6).transpose(0, 1).permute(2, 0, 1)
    error, streams = torch.randn(6, 2, 2), Streams({id(x): "x"})
    (behind, _), *_ = last.grad_fn.next_functions[0][0].next_functions[0][0].next_functions
    streams.add(last.grad_fn, 0, STREAM, error)
    assert not last.grad_fn.metadata.get(streams.waiting)
    assert behind.name() == "MulBackward0"
    (arrived,) = behind.metadata[streams.waiting].values()
    assert torch.equal(arrived, error.permute(1, 2, 0).transpose(0, 1).reshape(4, 6))


@pytest.mark.parametrize("gets_a_gradient", [False, True])
def test_an_error_reaches_a_parameter_that_is_viewed_when_that_gets_a_gradient(gets_a_gradient):
    place, x = nn.Parameter(torch.randn(6)), torch.randn(4, 6, requires_grad=True)
    result, streams = x * place.view(1, 6), Streams({id(place): "place"})
    place.register_hook(lambda grad: streams.settle("place"))
    streams.add(result.grad_fn, 0, STREAM, torch.ones(4, 6))
    result.sum().backward(inputs=[x, place] if gets_a_gradient else [x], retain_graph=True)
    assert bool(streams.energies()) == gets_a_gradient
    assert not streams._arrived


class Doubled(torch.autograd.Function):
    n_calls = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        Doubled.n_calls += 1
        return 2 * grad


def test_code_of_others_is_not_called_and_is_named():
    layer = nn.Linear(4, 4)
    result = Doubled.apply(layer(torch.randn(3, 4)))
    streams = Streams({id(layer.weight): "weight"})
    streams.add(result.grad_fn, 0, STREAM, torch.ones(3, 4))
    Doubled.n_calls = 0
    result.sum().backward()
    assert Doubled.n_calls == 1
    assert streams.stopped == {"DoubledBackward"}


def test_a_checkpointed_block_is_not_called():
    layer = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    result = checkpoint(layer, torch.randn(3, 4, requires_grad=True), use_reentrant=False)
    assert not can_be_called(result.grad_fn)
    plain = layer(torch.randn(3, 4))
    assert can_be_called(plain.grad_fn)


def test_saved_tensors_are_found_by_slot():
    x = torch.randn(3, 4, requires_grad=True)
    assert [slot for slot, _ in saved_of((x * x).grad_fn)] == ["other", "self"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_energy_does_not_overflow_in_the_dtype_of_the_tensor(dtype):
    assert float(energy(torch.full((1000,), 300.0, dtype=dtype))) == pytest.approx(9e7, rel=1e-3)


def test_energy_of_a_sparse_gradient():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert float(energy(table.weight.grad)) == pytest.approx(2 * (4 + 1))


class Table(nn.Module):
    """A weight that serves as a table too, and is used by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * WORTH_IT, 12))
        self.other = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(self.weight[:7] * x)
        return F.linear(torch.tanh(x), self.weight) + F.linear(x, self.weight)


def test_sketches_and_errors_of_one_parameter_are_added_up():
    torch.manual_seed(0)
    model, x = Table().double(), torch.randn(7, 1).double()
    error = torch.randn(7, 2 * WORTH_IT).double()
    exact, _ = run(model, x, None, False)
    wrong, _ = run(model, x, error, False)
    true = wrong["weight"] - exact["weight"]
    for seed in range(3):
        signs = Signs(seed)
        _, streams = run(model, x, error, True, signs=signs)
        found = streams.energies()[STREAM]
        assert found["weight"] == pytest.approx(float(energy(signs.sketch(true))))
        assert found["other.weight"] == pytest.approx(float(energy(wrong["other.weight"] - exact["other.weight"])))


def test_an_error_that_ends_in_a_layer_reaches_an_input_that_is_a_parameter():
    torch.manual_seed(0)
    model = Calls(
        lambda x: model.layer(model.queries * x), queries=nn.Parameter(torch.randn(4, 6)), layer=nn.Linear(6, 3)
    )
    direct = Calls(
        lambda x: direct.layer(direct.queries), queries=nn.Parameter(torch.randn(4, 6)), layer=nn.Linear(6, 3)
    )
    for one, reached in ((model, {"layer.weight", "layer.bias"}), (direct, {"queries", "layer.weight", "layer.bias"})):
        _, streams = run(one, torch.ones(4, 6), torch.randn(4, 3), True, layers=1)
        assert streams.energies()[STREAM].keys() == reached
