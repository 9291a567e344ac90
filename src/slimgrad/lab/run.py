"""One training run, step by step, with everything in it that has to be the same after an interruption.

    run = Run(recipe.filled())
    run.step()                       forward, backward, optimiser; appends to run.history
    run.test()                       loss and accuracy on what is held out
    run.state_dict(), run.load_state_dict(state)

A run that was saved after any step and loaded into a new Run goes on to the bit: batches are a function of the step,
and all else (parameters, optimiser, schedule, random states, what bounds have learnt) is in the state.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab import models, words
from slimgrad.lab.arms import checkpoint_segments
from slimgrad.lab.checkpoint import random_states, set_random_states
from slimgrad.lab.growth import n_batches
from slimgrad.lab.history import History
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.systems import system_of
from slimgrad.planner.accumulation import Accumulation
from slimgrad.planner.out_of_memory import give_back_memory
from slimgrad.report.memory import reset_resident_peak, resident_now, resident_peak

AUDIT_SEED = 500_000  # audits see batches in another order than training does


class Run:
    """The run of one recipe, which has to be filled."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        if recipe.threads:
            torch.set_num_threads(recipe.threads)
        torch.manual_seed(recipe.seed)
        self.source = recipe.source()
        self.model = recipe.build_model()
        self.criterion: nn.Module = models.PlaceLoss() if self.source.unit == "tokens" else nn.CrossEntropyLoss()
        self.optimizer = recipe.build_optimizer(self.model)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, recipe.rate)
        self.system = system_of(recipe.system) if recipe.system else None
        self.n_grown = self._n_grown()  # batches that one step takes after the warm-up of a system
        self.session = self._attach()
        self.done = 0  # steps
        self.before = 0  # ... when the last one began
        self.has_stepped = False  # in this process
        self.history = History(recipe.steps)
        self._was_reset = reset_resident_peak()
        self._resident_before = resident_now() or 0
        self._peak_before = 0  # of earlier processes of the same run, and up to the last audit

    def _attach(self) -> slimgrad.Session | None:
        if self.recipe.arm == "checkpoint":
            checkpoint_segments(self.model)
        if self.recipe.arm != "slim":
            return None
        if self.system is None:
            bound, policy = words.bound_of(self.recipe.bound), words.policy_of(self.recipe.policy)
        else:
            bound, policy = self.system.bound(self.recipe.steps), self.system.policy
        return slimgrad.attach(self.model, self.criterion, bound=bound, policy=policy, optimizer=self.optimizer)

    def _n_grown(self) -> int:
        if self.system is None or self.system.warm_up is None:
            return 1
        x, y = self.fitted_batch(0, 1, self.recipe.seed)
        return n_batches(self.recipe, self.model, self.criterion, x, y)

    def n_next(self) -> int:
        """Return how many batches the next step takes."""
        if self.system is None or self.system.warm_up is None or self.done < self.system.warm_up(self.recipe.steps):
            return 1
        return min(self.n_grown, self.recipe.steps - self.done)

    def passes(self, step: int) -> bool:
        """Return whether the last step came to this one or passed it, as a step over several batches may."""
        return self.before < step <= self.done

    def step(self) -> None:
        """Train on the next batch, or on the next few."""
        start, n = time.perf_counter(), self.n_next()
        x, y = self.fitted_batches(self.done, n)
        loss, n_right = self.learn(x, y)
        self._check_finite("loss", loss, self.done + 1)
        for _ in range(n):
            self.schedule.step()
        self.before, self.done, self.has_stepped = self.done, self.done + n, True
        self.history.add_step(loss, n_right / y.numel(), (time.perf_counter() - start) / n)
        if self.history.is_point_due(self.before, self.done):
            self._note_point()

    def _check_finite(self, name: str, loss: float, step: int) -> None:
        """Training does not come back from a loss that is not finite, and no result could be written."""
        if not math.isfinite(loss):
            raise ConfigError(
                f"expected a finite {name}, got {loss} at step {step} of {self.recipe}; "
                f"try a smaller learning rate than --lr {self.recipe.lr:g}, or a stricter bound"
            )

    def learn(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, int]:
        """Train on these examples, in parts where the recipe says so; return the loss and how many were right."""
        self.optimizer.zero_grad()
        loss, n_right = 0.0, 0
        for weight, (inputs, target) in Accumulation(len(x), self.recipe.part or len(x)).split(x, y):
            logits = self.model(inputs)
            share = weight * self.criterion(logits, target)
            share.backward()
            loss, n_right = loss + share.item(), n_right + self._n_right(logits, target)
        self.optimizer.step()
        return loss, n_right

    def misfit(self) -> Exception | None:
        """Return what the model by itself raises on two examples of the largest class; None where it takes them."""
        self.close()
        x, y = self.fitted_batch(0, min(2, self.recipe.batch), self.recipe.seed)
        try:
            with torch.no_grad():
                self.criterion(self.model(x), torch.full_like(y, self.source.classes - 1))
        except Exception as error:  # whatever a model does
            return error
        return None

    def _note_point(self) -> None:
        sums = None
        if self.session is not None:
            self.session.progress.begin_forward()  # the step is over
            sums = self.session.shelf.ledger.snapshot().total
        self.history.add_point(self.done, sums)

    def fitted_batch(self, step: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a batch as the model takes it."""
        return self._fitted(*self.source.batch(step, size, seed))

    def fitted_batches(self, step: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the batches of n steps as one."""
        pairs = [self.fitted_batch(step + i, self.recipe.batch, self.recipe.seed) for i in range(n)]
        return pairs[0] if n == 1 else (torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))

    def _fitted(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows_only = self.recipe.model == "lstm" and x.dim() == 4  # reads an image row by row
        if self.recipe.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return (x.flatten(1, 2) if rows_only else x), y

    def _n_right(self, logits: torch.Tensor, y: torch.Tensor) -> int:
        classes = -1 if self.source.unit == "tokens" else 1
        return int((logits.detach().argmax(classes) == y).sum())

    def test(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Add loss and accuracy on held-out examples to the history; return False if stopped before the end."""
        self.model.eval()
        loss = n_right = n = n_examples = 0
        try:
            with torch.no_grad():
                for x, y in (self._fitted(*pair) for pair in self.source.held_out(self.recipe.at_once)):
                    if should_stop():
                        return False
                    logits = self.model(x)
                    loss += float(self.criterion(logits, y)) * y.numel()
                    n_right += self._n_right(logits, y)
                    n += y.numel()
                    n_examples += len(y)
                    if 0 < self.recipe.test_examples <= n_examples:
                        break
        finally:
            self.model.train()
        self._check_finite("test loss", loss / n, self.done)
        self.history.add_test(self.done, loss / n, n_right / n)
        return True

    def audit(self) -> None:
        """Measure the error of the compressed gradient. It is only looked at: the bound does not learn from it."""
        if self.session is None:
            return
        x, y = self.fitted_batch(self.done, self.recipe.at_once, self.recipe.seed + AUDIT_SEED)
        self._peak_before = self.peak_resident()
        states = dict(self.session.tuning.states)
        found = self.session.audit(lambda: self.criterion(self.model(x), y))
        self.session.tuning.states.update(states)
        give_back_memory()  # an audit also runs the plain step, whose memory is not that of the training
        reset_resident_peak()
        self.history.add_noise(self.done, found.noise, found.expected, found.saved_ratio, self._mean_rel())

    def _mean_rel(self) -> float | None:
        """Return the mean bound in RMS over the values of all sites; None for bounds of another kind."""
        assert self.session is not None
        sites = [s for state in self.session.tuning.states.values() for s in state.get("sites", {}).values()]
        weighed = [(s["rel"], s["numel"]) for s in sites if "rel" in s and "numel" in s]
        n = sum(numel for _, numel in weighed)
        return sum(rel * numel for rel, numel in weighed) / n if n else None

    def peak_resident(self) -> int:
        """Return the most memory that training took beyond what was there before its first step."""
        return max(self._peak_before, (resident_peak() or 0) - self._resident_before)

    @property
    def seconds_per_step(self) -> float:
        return statistics.median(self.history.seconds) if self.history.seconds else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return all that the run depends on from here on."""
        return {
            "recipe": self.recipe.to_dict(),
            "done": self.done,
            "before": self.before,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "session": None if self.session is None else self.session.state_dict(),
            "random": random_states(),
            "history": self.history.state_dict(),
            "peak": self.peak_resident(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a run of the same recipe."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.session is not None:
            self.session.load_state_dict(state["session"])
        self.history.load_state_dict(state["history"])
        self._peak_before = state["peak"]
        self.done, self.before = state["done"], state.get("before", max(0, state["done"] - 1))
        set_random_states(state["random"])

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session.detach()
