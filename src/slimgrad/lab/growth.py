"""COMET's larger batch: memory that compression frees after the warm-up goes into examples per step.

    n_batches(recipe, model, criterion, x, y)        1, 2, 4, ...: how many batches one step takes after the warm-up

The room is what plain PyTorch needs at the recipe's batch; COMET's reserve of 5 % stays free, and batches are powers of
two times the recipe's, up to `most_batch`. Both peaks are predicted on fake tensors, so the answer is a function of the
recipe: a run that is resumed finds the same. A step over n batches counts as n steps: data, schedule and tests go on as
they would.
"""

from __future__ import annotations

import torch
from torch import nn

from slimgrad.bounds import Relative
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.systems import COMET_LAYERS, Only
from slimgrad.planner.fake_run import START, Workload, predict
from slimgrad.planner.fit_batch import RESERVE
from slimgrad.policy import COMPRESS

MOST = 8  # times the batch, where the recipe names no most_batch; the paper has 4


def n_batches(recipe: Recipe, model: nn.Module, criterion: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    """Return the largest power of two of batches whose coded step fits where one plain batch fitted."""

    def example(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(size, *x.shape[1:], dtype=x.dtype), torch.zeros(size, *y.shape[1:], dtype=y.dtype)

    work = Workload(model, example, lambda: criterion)
    room = (1 - RESERVE) * predict(work, recipe.batch).peak
    bound, found = Only(Relative(START.rel), COMET_LAYERS), 1
    most = (recipe.most_batch or MOST * recipe.batch) // recipe.batch
    while 2 * found <= most and predict(work, 2 * found * recipe.batch, policy=COMPRESS, bound=bound).peak <= room:
        found *= 2
    return found
