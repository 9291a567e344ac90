"""A batch in parts that fit trains as the whole batch does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from slimgrad.lab import parts
from slimgrad.lab.parts import fitted, resumed
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run
from slimgrad.lab.train import CHECKPOINT, Interrupted, train
from slimgrad.planner.fit_batch import fit_batch
from slimgrad.planner.meters import Live

TINY = Recipe("tiny_nets:cnn", "random", arm="plain", size=16, steps=4, batch=12)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def memory_is_that_of_tensors(monkeypatch):
    """The resident set of a test run says nothing about so small a net."""
    monkeypatch.setattr(parts, "fit_batch", lambda *args, **options: fit_batch(*args, **options, meter=Live()))


def peak_of(batch: int) -> int:
    run = Run(TINY.filled())
    return Live().peak_of(lambda: run.learn(*run.fitted_batch(0, batch, 0)))


def test_the_batch_stays_and_its_parts_fit():
    recipe, fit = fitted(TINY, int(peak_of(7) / 0.95))
    assert recipe.batch == 12
    assert 5 <= recipe.part == fit <= 8
    assert "batch" in fit.log()
    whole, fit = fitted(TINY, 1000 * MIB)
    assert max(one.batch for one in fit.tries) == 12
    assert whole.part == 0
    assert whole.at_once == 12


@pytest.mark.parametrize("part", [5, 6])
def test_gradients_are_those_of_the_whole_batch(part):
    """Also with parts of different sizes; the net has no batch norm, which would see the parts."""
    filled = replace(TINY, model="lstm", data="fashion-mnist", size=None, options={"dropout": 0.0}).filled()
    whole, cut = Run(filled), Run(replace(filled, part=part))
    for run in (whole, cut):
        run.step()
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert whole.history.loss == pytest.approx(cut.history.loss, rel=1e-5)
    assert whole.history.accuracy == cut.history.accuracy


def test_a_resumed_run_keeps_its_parts(tmp_path):
    recipe = replace(TINY, part=5)
    with pytest.raises(Interrupted):
        train(recipe, tmp_path, until=2)
    again = resumed(TINY, tmp_path / CHECKPOINT)
    assert again.part == 5
    result = train(again, tmp_path, resume=True)
    assert result["recipe"]["part"] == 5
