"""Recorded activations: real, repeatable, and what the blocks really compute."""

import torch
from torch import nn

from slimgrad.lab.recorded import SmallNet, activations, record, train


def test_the_network_learns() -> None:
    torch.manual_seed(0)
    losses = train(SmallNet(width=8), steps=30, batch=64)
    assert sum(losses[-5:]) / 5 < 0.6 * losses[0]


def test_record_gives_what_the_blocks_save() -> None:
    torch.manual_seed(0)
    model = SmallNet(width=4)
    samples = {sample.name: sample for sample in record(model, batch=3)}
    assert len(samples) == 6
    block = model.blocks[0]
    assert isinstance(block, nn.Sequential)
    with torch.no_grad():
        again = block[2](block[1](samples["batch-norm input 1"].tensor))
    rectified = samples["relu output 1"].tensor
    assert torch.equal(again, rectified)
    assert torch.equal(samples["relu mask 1"].tensor, rectified > 0)
    pooled = rectified.flatten(2).gather(2, samples["pool indices 1"].tensor.flatten(2))
    assert torch.equal(pooled, nn.functional.max_pool2d(rectified, 2).flatten(2))


def test_no_block_is_dead() -> None:
    """A network whose second block has died gives ratios that no real one does."""
    samples = {sample.name: sample.tensor for sample in activations()}
    for number in (1, 2):
        assert 0.4 < float((samples[f"relu output {number}"] > 0).float().mean()) < 0.7


def test_activations_repeat_and_leave_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    once = activations(steps=1, batch=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again = activations(steps=1, batch=4)
    assert [sample.name for sample in once] == [sample.name for sample in again]
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(once, again, strict=True))
