"""Gradient accumulation gives the gradient of the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from slimgrad.errors import ConfigError
from slimgrad.planner.accumulation import Accumulation


@pytest.mark.parametrize(("effective", "fits"), [(256, 48), (7, 3), (5, 8), (12, 4), (1, 1)])
def test_parts_are_even_and_fit(effective, fits):
    sizes = Accumulation(effective, fits).sizes
    assert sum(sizes) == effective
    assert max(sizes) <= fits
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-effective // fits)


def test_the_gradient_is_that_of_the_whole_batch():
    torch.manual_seed(0)
    model, criterion = nn.Linear(5, 3), nn.CrossEntropyLoss()
    x, y = torch.randn(7, 5), torch.randint(3, (7,))
    criterion(model(x), y).backward()
    whole = model.weight.grad.clone()
    model.zero_grad()
    for weight, (part, target) in Accumulation(effective=7, fits=3).split(x, y):
        (weight * criterion(model(part), target)).backward()
    torch.testing.assert_close(model.weight.grad, whole)


def test_wrong_sizes_are_errors():
    with pytest.raises(ConfigError, match=r"expected batches of at least 1"):
        Accumulation(8, 0)
    with pytest.raises(ConfigError, match=r"expected tensors of 8 examples, got 7"):
        list(Accumulation(8, 4).split(torch.ones(7)))
