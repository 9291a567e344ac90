"""Blocks: run again in backward with the same numbers, statistics counted once, and nothing stored of them."""

from __future__ import annotations

import os

import pytest
import small_models
import torch
from scenes import gradients, hooks_are_off, same, train_step
from torch import nn

import slimgrad
from slimgrad import ConfigError, Exact, Noise, Recompute, Relative, Swap
from slimgrad.lab import models


class Residual(nn.Module):
    """Norms, dropout, pooling and activations; counts its forwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.act, self.drop = nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.n_forwards = 0
        self.fails = False

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.n_forwards += 1
        if self.fails:
            raise ValueError("in the block")
        return x + scale * self.pool(self.conv(self.drop(self.act(self.norm(x)))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.stage = nn.Sequential(Residual(8), Residual(8))
        self.last = Residual(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.stage(self.stem(x)), scale=0.5).square().mean()


def one_step(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = gradients(net(x), net)
    return [*found, *(buffer.clone() for buffer in net.buffers()), torch.rand(3)]


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("blocks", ["auto", ["stage.*", "last"], ["stage"], ["last"]], ids=str)
def test_gradients_statistics_and_random_numbers_are_those_of_plain_torch(blocks):
    plain, net = Net(), Net()
    with slimgrad.attach(net, bound=Exact(), policy=Recompute(blocks), min_bytes=64):
        for _ in range(3):
            assert same(one_step(net, X), one_step(plain, X))
    assert hooks_are_off()


def test_nothing_of_a_block_is_stored_and_it_runs_twice():
    net = Net()
    with slimgrad.attach(net, bound=Exact(), policy=Recompute(["stage.*"]), min_bytes=64) as session:
        loss = net(X)
        everything = {path for path, *_ in session.shelf.ledger.snapshot().total.kept}
        loss.backward()
    assert not any(path.startswith("stage.") and "." in path[6:] for path in everything)
    assert any(path.startswith("last") for path in everything)
    assert [block.n_forwards for block in (*net.stage, net.last)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_models_of_the_lab(name):
    plain, slim, criterion = small_models.build(name), small_models.build(name), models.criterion(name)
    batch = small_models.example(name)
    options = {"bound": Exact(), "policy": Recompute("auto"), "min_bytes": 64}
    with slimgrad.attach(slim, criterion, **options) as session:
        assert session.blocks is not None and len(session.blocks.paths) > 1
        for seed in range(2):
            found = [train_step(model, criterion, *batch, seed=seed) for model in (plain, slim)]
            assert same(*found)


def test_boundaries_may_be_swapped(tmp_path):
    plain, net = Net(), Net()
    policy = Recompute("auto", other=Swap("disk", directory=tmp_path, min_bytes=0))
    with slimgrad.attach(net, bound=Exact(), policy=policy, min_bytes=64) as session:
        for _ in range(2):
            assert same(one_step(net, X), one_step(plain, X))
        assert session.report().storage["on disk at most"] > 0
    assert os.listdir(tmp_path) == []


def test_a_bound_holds_outside_of_blocks():
    for bound in (Relative(0.5), Noise(0.05)):
        net = Net()
        with slimgrad.attach(net, bound=bound, policy=Recompute(["last"]), min_bytes=64) as session:
            for _ in range(3):
                one_step(net, X)
            coded = session.report().by_module()
        assert any(path.startswith("stage") for path in coded) and not any(path.startswith("last") for path in coded)


def test_memory_held_is_that_of_the_boundaries():
    def held(policy) -> int:
        net = Net()
        with slimgrad.attach(net, bound=Exact(), policy=policy, min_bytes=64) as session:
            loss = net(X)
            n = session.kept_bytes()
            loss.backward()
        return n

    boundary = 2 * 8 * 14 * 14 * 4  # bytes; there are three, and the input of square
    assert held(Recompute(["stage.*", "last"])) == 4 * boundary < held(slimgrad.Compress())


def test_an_exception_in_a_block():
    net, plain = Net(), Net()
    with slimgrad.attach(net, bound=Exact(), policy=Recompute("auto"), min_bytes=64):
        net.stage[1].fails = True
        with pytest.raises(ValueError, match="in the block"):
            net(X)
        assert hooks_are_off()
        net.stage[1].fails = False
        net.load_state_dict(plain.state_dict())
        assert same(one_step(net, X), one_step(plain, X))


def test_an_interrupt_in_a_block():
    net = Net()

    def interrupt(*_):
        raise KeyboardInterrupt

    with slimgrad.attach(net, bound=Exact(), policy=Recompute("auto"), min_bytes=64):
        handle = net.stage[1].conv.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            net(X)
        handle.remove()
        one_step(net, X)
        assert hooks_are_off()


def test_retain_graph_and_no_grad():
    net = Net()
    with slimgrad.attach(net, bound=Exact(), policy=Recompute("auto"), min_bytes=64):
        loss = net(X)
        first = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        assert same(list(first), list(torch.autograd.grad(loss, list(net.parameters()))))
        n = net.last.n_forwards
        with torch.no_grad():
            net(X)
        assert net.last.n_forwards == n + 1


@pytest.mark.parametrize(
    "net, expected",
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ReLU()), {"1"}),
        (
            nn.Sequential(nn.Sequential(Residual(2), Residual(2)), nn.Sequential(nn.ReLU(), nn.ReLU())),
            {"0.0", "0.1", "1"},
        ),
        (nn.Sequential(Residual(2), nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())), {"0", "1.0"}),
    ],
)
def test_which_blocks_are_chosen(net, expected):
    with slimgrad.attach(net, policy=Recompute("auto")) as session:
        assert session.blocks is not None and session.blocks.paths == expected


def test_blocks_that_are_not_there():
    with pytest.raises(ConfigError, match=r"nowhere.*blocks=\["):
        slimgrad.attach(net := Net(), policy=Recompute(["nowhere.*"]))
    with pytest.raises(ConfigError, match="match none"):
        slimgrad.attach(nn.Linear(3, 3), policy=Recompute("auto"))
    with pytest.raises(ConfigError, match=r"write blocks=\['layer1'\]"):
        Recompute("layer1")  # type: ignore[arg-type]
    slimgrad.attach(net).detach()  # the model was left free
