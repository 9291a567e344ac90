"""What a session would store, when, and for how long."""

from __future__ import annotations

import torch
from torch import nn

from slimgrad import Compress, Relative, Swap
from slimgrad.planner.fake_run import Workload, predict
from slimgrad.planner.fake_shelf import Item


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(1))


def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(batch, 3, 32, 32), torch.empty(batch, dtype=torch.long)


def items_under(policy) -> dict[str, Item]:
    found = predict(Workload(net, example), 8, policy=policy, bound=Relative(0.5))
    assert all(0 <= item.born <= item.died <= len(found.moments) for item in found.items)
    return {item.role: item for item in found.items}


def test_an_item_knows_when_it_was_stored_read_and_let_go():
    items = items_under(Compress())
    norm, conv = items["batch norm input"], items["conv input"]
    assert norm.nbytes == conv.nbytes == 8 * 16 * 30 * 30 * 4
    assert norm.stored < norm.nbytes / 8
    assert norm.born < conv.born < conv.read < norm.read
    for item in (norm, conv):
        assert item.born < item.gone < item.read < item.done <= item.died
    assert conv.died < norm.died, "backward goes the other way"


def test_swapped_as_it_is_a_tensor_has_all_its_bytes():
    items = items_under(Swap("disk", compress=False, min_bytes=4096))
    assert {item.codec for item in items.values()} == {"raw"}
    assert all(item.stored == item.nbytes for item in items.values())


def test_a_share_of_the_bytes_leaves():
    whole = predict(Workload(net, example), 8, policy=Swap("disk", compress=False, min_bytes=4096))
    part = predict(Workload(net, example), 8, policy=Swap("disk", compress=False, min_bytes=4096, fraction=0.3))
    assert 0 < len(part.items) < len(whole.items)
