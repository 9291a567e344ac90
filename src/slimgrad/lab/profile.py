"""Where the bytes of a model are, and how its activations change over a real training.

    result = profile(recipe, watch=print)

The model is trained plain, so that what is observed is what PyTorch would train. At 0, 25, 50, 75 and 100 % its layers
are observed (density.py); at the end one step runs in a session, which tells the bytes by role and module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import slimgrad
from slimgrad.lab import machine, words
from slimgrad.lab.density import Layer, observations, observe
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import AUDIT_SEED, Run
from slimgrad.report import Report

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
N_OBSERVED = 32  # examples


def profile(recipe: Recipe, watch: Callable[[Run], None] = lambda run: None) -> dict[str, Any]:
    """Train and observe; return plain numbers, but for the pictures, which are rows of bytes."""
    filled = recipe.filled()
    run = Run(replace(filled, arm="plain"))
    try:
        x, _ = run.fitted_batch(0, min(N_OBSERVED, filled.batch), filled.seed + AUDIT_SEED)
        due = _due(filled.steps)
        course: dict[float, list[Layer]] = {}
        while True:
            if run.done in due:
                course[due[run.done]] = observe(run.model, x)
            if run.done >= filled.steps:
                break
            run.step()
            watch(run)
        run.test()
        report = _bytes(run, filled)
    finally:
        run.close()
    return {
        "recipe": filled.to_dict(),
        "machine": machine.describe(),
        "test": run.history.test[-1],
        "course": course,
        "observations": observations(course),
        "report": report,
    }


def _due(steps: int) -> dict[int, float]:
    """Return the shares by the step after which they are reached; in a short training, some are not."""
    due: dict[int, float] = {}
    for share in sorted(SHARES, key=lambda share: (share % 1, share % 0.5, share)):  # both ends first, then the middle
        due.setdefault(round(share * steps), share)
    return due


def _bytes(run: Run, recipe: Recipe) -> Report:
    """Return the report of two steps of a session; the second knows what the first has learnt."""
    bound, policy = words.bound_of(recipe.bound), words.policy_of(recipe.policy)
    session = slimgrad.attach(run.model, run.criterion, bound=bound, policy=policy, optimizer=run.optimizer)
    with session:
        for step in range(2):
            x, y = run.fitted_batch(step, recipe.batch, recipe.seed)
            run.criterion(run.model(x), y).backward()
            run.optimizer.zero_grad()
            if step == 0:
                session.progress.begin_forward()
                session.shelf.ledger.clear()
        return session.report()


def to_json(result: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a profile without its pictures."""
    course = {
        f"{share:.2f}": [{k: v for k, v in layer._asdict().items() if k != "picture"} for layer in layers]
        for share, layers in result["course"].items()
    }
    checked = [observation._asdict() for observation in result["observations"]]
    return {**result, "course": course, "observations": checked, "report": result["report"].to_dict()}
