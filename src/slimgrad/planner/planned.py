"""The plan of one session under a budget: made, followed, made again. See budget.py for the order of events.

Sites name tensors from step to step: the module's path and the number of the save in its forward. What was not foreseen
(another path through the model) is kept in the most frugal way.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slimgrad.attached import tensors_in
from slimgrad.errors import ConfigError
from slimgrad.ledger import Sums
from slimgrad.planner.budget_size import used_now
from slimgrad.planner.choices import choose, frugal
from slimgrad.planner.disk_speed import ASSUMED, disk_bandwidth
from slimgrad.planner.fake_run import Prediction, Workload, predict
from slimgrad.planner.fake_shelf import Item
from slimgrad.planner.fit_batch import RESERVE
from slimgrad.planner.making_speed import making_bandwidth
from slimgrad.planner.out_of_memory import give_back_memory
from slimgrad.planner.timeline import AGAIN, CHOICES, CODE, DISK, KEEP, Cost, Room, Site, Timeline
from slimgrad.policy import COMPRESS, Plan, Recompute, RoleBound
from slimgrad.policy import DISK as DISK_TIER
from slimgrad.roles import Role

if TYPE_CHECKING:
    from slimgrad.session import Session

KEPT_PLAN = Plan(None, reason="fits in the budget")
DRIFT = 0.1  # share by which stored bytes may differ from the plan's before it is made again
CODE_BANDWIDTH = 1e9  # bytes/s of encode and decode together, until a step has measured it
MIN_SWAPPED = 1 << 16  # bytes: below, a write costs more than it frees
MIB = 1 << 20


class _Loss(nn.Module):
    """Stands for the criterion: a log-softmax and its gradient are what most losses add to the peak."""

    def forward(self, output: Any, target: object) -> torch.Tensor:
        outputs = [value for value in tensors_in(output) if value.is_floating_point() and value.requires_grad]
        return torch.stack([torch.log_softmax(value, -1).sum() for value in outputs]).sum()


class Planned:
    """Choices by site, and what they were made from."""

    def __init__(
        self,
        budget: int,
        allowed: Sequence[str],
        counts_live: bool,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self.budget, self.limit = budget, int(budget * (1 - RESERVE))
        self.allowed, self.counts_live = tuple(allowed), counts_live
        self.choices: dict[Site, str] = {}
        self.costs: dict[Site, Cost] = {}
        self.peak = 0  # predicted, of the kind that the budget counts
        self.n_plans = 0
        self.remark = ""
        self._key: list[list[int]] | None = None  # shapes of the inputs that the plan is for
        self._timeline: Timeline | None = None
        self._prediction: Prediction | None = None
        self._again: Prediction | None = None  # the same step with everything made again that can be
        self._first_step = 0  # bytes that it takes beyond later ones, which know what is needed of a tensor
        self._planned_after = -1  # the step whose measurements the plan is made from; -1: none, the plan is frugal
        self._saved: Mapping[str, Any] = {}  # the state to go on from, until the first forward
        self._session: weakref.ref[Session] | None = None
        self._bandwidth = disk_bandwidth(directory) if DISK in self.allowed else ASSUMED

    def makes(self, site: Site) -> bool:
        """Return whether the tensor saved at this site is made again instead of stored."""
        return self.choices.get(site) == AGAIN

    @property
    def makes_any(self) -> bool:
        return AGAIN in self.choices.values()

    def plan(self, site: Site, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep the tensor that is saved at this site."""
        choice = self.choices.get(site, self.allowed[-1])
        if choice == KEEP:
            return KEPT_PLAN
        plan = COMPRESS.plan(role, tensor, bound)
        if choice == DISK and plan.codec is not None and tensor.untyped_storage().nbytes() >= MIN_SWAPPED:
            return plan._replace(tier=DISK_TIER)
        return plan

    def before_forward(self, session: Session, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Plan where there is something to plan from: new shapes, a first measured step, ratios that drifted."""
        key = [list(tensor.shape) for tensor in tensors_in(args)]
        self._session = weakref.ref(session)
        session.progress.begin_forward()
        if key != self._key:
            self._trace(session, module, args, key)
        else:
            self._replan_if_due(session)

    def _replan_if_due(self, session: Session) -> None:
        n_steps = session.progress.n_steps
        if self._timeline is None or n_steps <= max(self._planned_after, 0):
            return
        last = session.shelf.ledger.snapshot().last
        is_due, self._planned_after = self._planned_after < 0 or self._has_drifted(last), n_steps
        if is_due:
            self._replan(last, session.shelf.arena.nbytes_touched)

    def _trace(self, session: Session, module: nn.Module, args: tuple[Any, ...], key: list[list[int]]) -> None:
        """Run the step on fake tensors, take the most frugal plan, and refuse what cannot fit."""
        saved, self._saved = self._saved, {}
        self._key, self._planned_after = key, -1
        if len(args) != 1 or not isinstance(args[0], torch.Tensor):
            self.remark = "the model takes more than one tensor: nothing is predicted, the most frugal plan is used"
            return
        source = args[0]

        def example(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.empty(source.shape, dtype=source.dtype), torch.empty(0)

        work = Workload(module, example, _Loss)
        bound = session.attached.bound
        try:
            found = predict(work, len(source), policy=COMPRESS, bound=bound)
            if AGAIN in self.allowed:
                self._again = predict(work, len(source), policy=Recompute(), bound=bound)
        except Exception as error:  # whatever the model does with values that are not there
            self.remark = f"the model cannot run on fake tensors ({type(error).__name__}): the most frugal plan is used"
            return
        self._prediction = found
        self._timeline = Timeline(found.items, found.moments)
        self._set_costs(Sums())
        coded = dict.fromkeys(self._timeline.sites, CODE)
        self._first_step = max(found.peak - self._timeline.peak(coded, self.costs), 0)
        self.n_plans += 1
        if saved.get("key") == key and self._goes_on(saved):
            return
        self.choices = frugal(self._timeline, self.costs, self.allowed, self._sources())
        self.peak = self._peak()
        if self.peak > self.limit:
            self._refuse(len(source))

    def _goes_on(self, saved: Mapping[str, Any]) -> bool:
        """Take the plan of a state with what it was made from; return False where it does not fit into this process.

        A process that has a little more memory than the one before may use the reserve: another plan would code other
        tensors, and a resumed run would not be the same run.
        """
        before = dict(self.costs)
        self.choices = {(path, number): choice for path, number, choice in saved["choices"]}
        self.costs |= {(path, number): Cost(*cost) for path, number, *cost in saved.get("costs", [])}
        self._planned_after = saved.get("planned_after", -1)
        self.peak = self._peak()
        if self.peak <= self.budget:
            return True
        self.costs, self._planned_after = before, -1
        self.remark = "the plan of the run before does not fit beside what this process holds: it is made anew"
        return False

    def _refuse(self, batch: int) -> None:
        assert self._prediction is not None
        base = self._offset() + self._prediction.static
        smaller = int(batch * max(self.limit - base, 0) / max(self.peak - base, 1))
        would = [f"a budget of {math.ceil(self.peak / (1 - RESERVE) / MIB):,} MiB"]
        would += ["policy=slimgrad.Hybrid(...), which swaps to disk"] if self._fits_with_disk() else []
        perhaps = f"; by estimate so would a batch of {smaller}" if smaller else ""
        raise ConfigError(
            f"expected a step that fits in {self.budget / MIB:,.0f} MiB less {RESERVE:.0%}, got a predicted peak of "
            f"{self.peak / MIB:,.0f} MiB with the most frugal plan ({base / MIB:,.0f} MiB are there before the step); "
            f"this would fit: {', '.join(would)}{perhaps}"
        )

    def _fits_with_disk(self) -> bool:
        """Return whether the step would fit if tensors could also be swapped, which so far they cannot."""
        assert self._timeline is not None
        if DISK in self.allowed:
            return False
        choices = frugal(self._timeline, self.costs, (*self.allowed, DISK), self._sources())
        return self._peak(choices) <= self.limit

    def _replan(self, last: Sums, touched: int) -> None:
        """Make the plan from what the last step measured, and from what it has left of its pool."""
        assert self._timeline is not None
        self._timeline.room = Room.of_system(touched)
        self._set_costs(last)
        self.choices = choose(self._timeline, self.costs, self.limit - self._offset(), self.allowed, self._sources())
        self.peak = self._peak()
        self.n_plans += 1

    def _set_costs(self, measured: Sums) -> None:
        assert self._prediction is not None
        for item in self._prediction.items:
            site, stored, seconds = (item.path, item.number), item.stored, item.nbytes / CODE_BANDWIDTH
            before = self.costs.get(site)
            coded = measured.coded.get((item.path, item.role))
            if coded is not None and coded.nbytes_in:
                stored = int(item.nbytes * coded.nbytes_out / coded.nbytes_in)
                seconds = (coded.encode_seconds + coded.decode_seconds) * item.nbytes / coded.nbytes_in
            elif before is not None and measured.coded:
                continue  # kept in that step: what is known of it stays
            swapped = seconds + 2 * stored / self._bandwidth
            on_disk = 0 if item.nbytes >= MIN_SWAPPED else stored
            sizes = {KEEP: item.nbytes, CODE: stored, DISK: on_disk}
            times = {KEEP: 0.0, CODE: seconds, DISK: swapped}
            if (again := self._made_again(item)) is not None:
                sizes[AGAIN], times[AGAIN] = again
            self.costs[site] = Cost(sizes, times)

    def _made_again(self, item: Item) -> tuple[int, float] | None:
        """Return what is stored of a tensor that is made again, its signs or nothing, and how long making it takes."""
        site = item.path, item.number
        again = None if self._again is None else self._again.again.get(site)
        if self._again is None or again is None or again.nbytes != item.nbytes:
            return None
        stored = sum(other.stored for other in self._again.items if (other.path, other.number) == site)
        return stored, again.n_calls * again.nbytes / making_bandwidth()

    def _sources(self) -> dict[Site, Site]:
        """Return from what tensors are made again, where that has a choice too; see choices.py."""
        again = {} if self._again is None else self._again.again
        return {site: one.source for site, one in again.items() if one.source in self.costs and one.source is not None}

    def _has_drifted(self, last: Sums) -> bool:
        """Return whether the bytes that a step stored are not those of the plan any more."""
        paths = {site[0] for site, choice in self.choices.items() if choice != KEEP}
        costs = {site: self.costs[site].nbytes for site, choice in self.choices.items() if choice != KEEP}
        planned = sum(nbytes[AGAIN if self.makes(site) else CODE] for site, nbytes in costs.items())
        stored = sum(coded.nbytes_out for (path, _), coded in last.coded.items() if path in paths)
        return abs(stored - planned) > DRIFT * max(planned, 1)

    def _peak(self, choices: Mapping[Site, str] | None = None) -> int:
        assert self._timeline is not None
        first = self._first_step if self._planned_after < 0 else 0
        choices = self.choices if choices is None else choices
        return self._timeline.peak(choices, self.costs) + first + self._offset()

    def _offset(self) -> int:
        """Return what there is before a step beyond what the fake run counts: code, libraries, other tensors."""
        if self.counts_live:
            return 0
        assert self._prediction is not None
        give_back_memory()
        return used_now() - self._prediction.static

    def remarks(self) -> list[str]:
        """Return the plan as a table of lines, for the report."""
        if self._timeline is None:
            return [f"budget {self.budget / MIB:,.0f} MiB: {self.remark}"] if self.remark else []
        kind = "frugal, before the first measured step" if self._planned_after < 0 else "measured"
        sizes = f"budget {self.budget / MIB:,.0f} MiB, predicted peak {self.peak / MIB:,.0f} MiB"
        lines = [
            f"{sizes}; plan {self.n_plans} ({kind}){f'; {self.remark}' if self.remark else ''}:",
            f"  {'':6}{'tensors':>8}{'original':>14}{'in memory':>14}{'seconds':>10}",
        ]
        for choice in CHOICES:
            costs = [self.costs[site] for site, one in self.choices.items() if one == choice and site in self.costs]
            if costs:
                sizes = [sum(cost.nbytes[k] for cost in costs) / MIB for k in (KEEP, choice)]
                seconds = sum(cost.seconds[choice] for cost in costs)
                lines.append(f"  {choice:6}{len(costs):8}{sizes[0]:10,.1f} MiB{sizes[1]:10,.1f} MiB{seconds:10.3f}")
        return ["\n".join(lines)]

    def state_dict(self) -> dict[str, Any]:
        """Return the plan of the next step and what it is made from, so that a resumed run is the same run.

        Measurements of the last step are not in a state: a plan that is due is made from them now.
        """
        if self._saved:  # loaded, and nothing has run since
            return dict(self._saved)
        session = None if self._session is None else self._session()
        if session is not None:
            session.progress.begin_forward()  # a state is taken between steps: the last one is over
            self._replan_if_due(session)
        return {
            "choices": [(*site, choice) for site, choice in self.choices.items()],
            "costs": [(*site, dict(cost.nbytes), dict(cost.seconds)) for site, cost in self.costs.items()],
            "planned_after": self._planned_after,
            "key": self._key,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.choices = {(path, number): choice for path, number, choice in state["choices"]}
        self._key, self._saved = None, dict(state)
