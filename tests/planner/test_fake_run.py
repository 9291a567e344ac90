"""A step on fake tensors needs the bytes that the same step on real ones does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from slimgrad import AcGc, Compress, Exact, Relative, attach
from slimgrad.origins import PLAIN_TYPES
from slimgrad.planner.fake_run import Workload, predict, sgd
from slimgrad.planner.meters import Live
from slimgrad.planner.rates import Rates


class Net(nn.Module):
    """Convolutions, batch norm, in-place ReLU, pooling, dropout, a linear layer."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True)) for _ in range(6)]
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.ModuleList(blocks)
        self.head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 16 * 16, 10))
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))


def measured(net: nn.Module, batch: int, bound=None) -> tuple[int, Rates]:
    """Return the live peak of real steps, and the rates that were seen."""
    criterion, optimizer = nn.CrossEntropyLoss(), sgd(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    x, y = example(batch)
    session = None if bound is None else attach(net, criterion, bound=bound)

    def step() -> None:
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            criterion(net(x), y).backward()
            optimizer.step()

    peak = Live(*([session] if session else [])).peak_of(step)
    if session is None:
        return peak, Rates()
    rates = Rates.of_run(session.shelf.ledger.snapshot().total)
    session.detach()
    return peak, rates


@pytest.mark.parametrize("checkpointed", [False, True])
def test_plain_and_checkpointed_peaks_are_right(checkpointed):
    torch.manual_seed(0)
    peak, _ = measured(Net(checkpointed), 16)
    assert predict(Workload(lambda: Net(checkpointed), example), 16).peak == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize("bound", [Relative(0.5), Exact()])
def test_slim_peaks_are_within_a_tenth_with_either_source_of_rates(bound):
    torch.manual_seed(0)
    peak, rates = measured(Net(), 256, bound)  # large enough for huge pages not to matter
    work = Workload(Net, example)
    assert predict(work, 256, policy=Compress(), bound=bound).peak == pytest.approx(peak, rel=0.1)
    assert predict(work, 256, policy=Compress(), bound=bound, rates=rates).peak == pytest.approx(peak, rel=0.1)


def test_what_is_saved_is_what_a_session_books():
    torch.manual_seed(0)
    net, criterion = Net(), nn.CrossEntropyLoss()
    with attach(net, criterion, bound=Relative(0.5)) as session:
        x, y = example(16)
        for _ in range(2):
            criterion(net(x), y).backward()
        booked = session.report().snapshot.last
    prediction = predict(Workload(net, example), 16, policy=Compress(), bound=Relative(0.5))
    assert prediction.saved == booked.saved_in
    stored = sum(item.stored for item in prediction.items)
    assert stored == pytest.approx(booked.coded_out, rel=0.05)
    assert stored <= prediction.held < 1.2 * stored


def test_a_real_model_is_left_alone():
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first = predict(Workload(net, example), 4)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert first.peak == predict(Workload(Net, example), 4).peak
    assert {kind.__name__ for kind in PLAIN_TYPES} == {"Tensor", "Parameter"}


def test_memory_grows_with_the_batch_and_autocast_shrinks_it():
    work = Workload(Net, example)
    small, large = predict(work, 8), predict(work, 64)
    assert large.beyond_static == pytest.approx(8 * small.beyond_static, rel=0.1)
    low = predict(Workload(Net, example, autocast=torch.bfloat16), 64)
    assert low.held < 0.8 * large.held


def test_an_adaptive_bound_is_predicted_where_it_starts():
    work = Workload(Net, example)
    adaptive = predict(work, 8, policy=Compress(), bound=AcGc())
    assert adaptive.peak == predict(work, 8, policy=Compress(), bound=Relative(0.25)).peak


def test_prepare_and_watch_are_used():
    seen = []

    class Watch:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *_):
            seen.append("out")

    prediction = predict(Workload(Net, example), 8, prepare=lambda net: setattr(net, "checkpointed", True), watch=Watch)
    assert seen == ["in", "out"]
    assert prediction.held < 0.6 * predict(Workload(Net, example), 8).held
