"""The batch that grows into freed memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from slimgrad.lab.growth import n_batches
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run

RECIPE = Recipe("tiny_nets:cnn", "random", size=32, steps=20, batch=4).for_arm("system:comet").filled()


def found(model: nn.Module, recipe: Recipe = RECIPE) -> int:
    return n_batches(recipe, model, nn.CrossEntropyLoss(), torch.zeros(1, 3, 32, 32), torch.zeros(1).long())


def deep(width: int) -> nn.Module:
    layers = [layer for _ in range(40) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, width)
    )


def test_freed_memory_becomes_a_power_of_two_of_batches() -> None:
    recipe = replace(RECIPE, batch=64)  # beyond the size of the pools' chunks
    assert found(deep(10), recipe) == 4
    assert found(deep(10), replace(recipe, most_batch=130)) == 2
    assert found(deep(10), replace(recipe, most_batch=64)) == 1


def test_what_is_mostly_parameters_does_not_grow() -> None:
    assert found(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))) == 1


def test_a_grown_step_counts_as_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimgrad.lab.run.n_batches", lambda *_: 4)
    run = Run(replace(RECIPE, steps=12))
    seen: list[int] = []
    run.model.register_forward_pre_hook(lambda module, args: seen.append(len(args[0])))
    try:
        while run.done < 12:
            run.step()
    finally:
        run.close()
    assert seen == [4, 16, 16, 12], "one batch of warm-up, then fours, and no step beyond the last"
    assert run.schedule.last_epoch == 12
    assert run.passes(10) and run.passes(12) and not run.passes(9)


def test_its_examples_are_those_of_the_steps_that_it_stands_for() -> None:
    run = Run(replace(RECIPE, steps=12))
    try:
        x, y = run.fitted_batches(3, 2)
        parts = [run.fitted_batch(step, 4, 0) for step in (3, 4)]
    finally:
        run.close()
    assert torch.equal(x, torch.cat([a for a, _ in parts]))
    assert torch.equal(y, torch.cat([b for _, b in parts]))
