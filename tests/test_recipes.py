"""Recipes: results of cheap functions are made again with the same bits, from sources that lost none."""

from __future__ import annotations

import pytest
import small_models
import torch
from scenes import gradients, same, train_step
from torch import nn
from torch.nn import functional

import slimgrad
from slimgrad import ChangedInPlace, Exact, Noise, Recompute, Relative, Swap
from slimgrad.lab import models
from slimgrad.recipes import recipe_of


def net(inplace: bool = False) -> nn.Module:
    """Every cheap layer, in chains that end in something dear."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2, 1), nn.Dropout(0.3), nn.Conv2d(8, 4, 1), nn.GELU(), nn.Flatten(),
        nn.Linear(4 * 36, 32), nn.LayerNorm(32), nn.Dropout(0.2), nn.Linear(32, 5),
    )  # fmt: skip


X = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, x: torch.Tensor = X) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = gradients(model(x).square().sum(), model)
    return [*found, *(buffer.clone() for buffer in model.buffers()), torch.rand(3)]


def again(model: nn.Module, bound=Exact(), **options) -> slimgrad.Session:  # noqa: B008
    return slimgrad.attach(model, bound=bound, policy=Recompute(**options), min_bytes=64)


@pytest.mark.parametrize("inplace", [False, True])
def test_gradients_statistics_and_random_numbers_are_those_of_plain_torch(inplace):
    plain, slim = net(), net(inplace)
    with again(slim) as session:
        for _ in range(3):
            assert same(step(slim), step(plain))
        coded = session.report().by_module()
    rebuilt = {path for path, sums in coded.items() if "rebuild" in sums.codecs}
    assert rebuilt >= {"4", "9", "12", "15"} - ({"4"} if inplace else set()), coded.keys()


def test_inputs_of_convolutions_take_no_memory():
    def held(policy) -> int:
        torch.manual_seed(0)
        layers = [f() for _ in range(4) for f in (lambda: nn.Conv2d(8, 8, 3), lambda: nn.BatchNorm2d(8), nn.ReLU)]
        model = nn.Sequential(nn.Conv2d(3, 8, 3), *layers)
        with slimgrad.attach(model, bound=Exact(), policy=policy, min_bytes=64) as session:
            loss = model(X).sum()
            n = session.kept_bytes()
            loss.backward()
        return n

    assert held(Recompute()) < 0.8 * held(slimgrad.Compress()), "which codes zeros"


@pytest.mark.parametrize("name", ["resnet18", "gpt", "mobilenet"])
def test_models_of_the_lab(name):
    plain, slim, criterion = small_models.build(name), small_models.build(name), models.criterion(name)
    batch = small_models.example(name)
    with slimgrad.attach(slim, criterion, bound=Exact(), policy=Recompute(), min_bytes=64):
        for seed in range(2):
            found = [train_step(model, criterion, *batch, seed=seed) for model in (plain, slim)]
            assert same(*found)


@pytest.mark.parametrize("bound", [Relative(0.5), Noise(0.05)], ids=repr)
def test_under_a_lossy_bound_chains_from_norms_stay_exact(bound):
    plain, slim = net(), net()
    with again(slim, bound) as session:
        for _ in range(2):
            found = step(slim)
        report = session.report()
    names = [name for name, _ in plain.named_parameters()]
    expected = step(plain)
    assert any("rebuild" in sums.codecs for sums in report.by_role().values())
    last = names.index("15.weight")
    if isinstance(bound, Relative):
        plain.load_state_dict(slim.state_dict())
        assert torch.equal(found[last], expected[last]), "its input was made from a layer norm's"


def test_sources_may_be_on_disk(tmp_path):
    plain, slim = net(), net()
    with again(slim, other=Swap("disk", directory=tmp_path, min_bytes=0)) as session:
        for number in range(100):  # a worker that comes late finds nothing left to write
            assert same(step(slim), step(plain))
            if number and session.report().storage["on disk at most"] > 0:
                break
        assert session.report().storage["on disk at most"] > 0


class Reads(nn.Module):
    """relu(layer_norm(x)) read by a product; `change` may alter something before backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.weight = nn.LayerNorm(64), nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = functional.relu(self.norm(x * 1.0))
        return y, y @ self.weight


@pytest.mark.parametrize("what", ["result", "parameter"])
def test_changes_in_place_are_found(what):
    model = Reads()
    with again(model):
        y, out = model(torch.randn(64, 64))
        with torch.no_grad():
            (y if what == "result" else model.norm.bias).add_(1)
        with pytest.raises(ChangedInPlace):
            out.sum().backward()


def test_retain_graph_and_two_readers():
    model, x = Reads(), torch.randn(64, 64)
    plain = torch.autograd.grad(model(x)[1].square().sum(), list(model.parameters()))
    with again(model):
        loss = model(x)[1].square().sum()
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(model.parameters()))
    assert same(list(first), list(plain)) and same(list(second), list(plain))


def test_a_function_in_place_is_not_made_from_its_own_result():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3))
    found = []
    model[1].register_forward_hook(lambda module, args, result: found.append(recipe_of(result)))
    with again(model):
        for _ in range(2):  # the second time every bit of the result is stored
            step(model)
    assert found == [None, None]


def test_no_recipe_where_the_bits_might_differ():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    with again(model) as session:
        model(X).sum().backward()
        assert not any("rebuild" in sums.codecs for sums in session.report().by_module().values()), "running statistics"
    model.train()
    with again(model) as session, torch.autocast("cpu", torch.bfloat16):
        model(X).sum().backward()
        assert "rebuild" not in session.report().by_role()["conv input"].codecs
