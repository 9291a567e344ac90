"""Twenty budgets for one step: is what the planner says fits, or not, right?

    python bench/budgets.py [--model resnet18] [--batch 8] [--size 112] [--json docs/results/budgets.json]
    python bench/budgets.py --bound exact --low 1.03 --high 1.02

Budgets of live bytes lie evenly between a little less than the step takes with everything coded and a little more than
it takes in plain PyTorch. A budget that is accepted is right if the peak of the first steps, planned frugally and then
by measurement, stays within it. One that is refused is right if everything coded, or made again where that takes less,
really takes more than the budget less its reserve. Every budget gets a session of its own on one model.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab import machine, models
from slimgrad.lab.arms import Material, Setup
from slimgrad.lab.peak import pools_of
from slimgrad.planner.fit_batch import RESERVE
from slimgrad.policy import Policy
from slimgrad.report.memory import LiveBytes

MIB = 1 << 20
N_BUDGETS, STEPS = 20, 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """One budget, in bytes; without a plan it was refused."""

    budget: int
    is_accepted: bool
    predicted: int
    measured: int  # of the plan, or the least that any policy takes where there is none
    plan: dict[str, int]  # tensors by choice

    @property
    def is_right(self) -> bool:
        return self.measured <= self.budget if self.is_accepted else self.measured > self.budget * (1 - RESERVE)


def peak_under(material: Material, policy: Policy | None) -> tuple[int, int, Counter[str]]:
    """Return the live peak of the first steps, what was predicted for the last, and its plan."""
    model, criterion = material.twin(), models.criterion(material.setup.model)
    session = None
    if policy is not None:
        session = slimgrad.attach(model, criterion, bound=material.bound, policy=policy)
    try:
        with LiveBytes(*pools_of(session)) as live:
            live.track(*material.static())
            for _ in range(STEPS):
                material.optimizer.zero_grad(set_to_none=False)
                criterion(model(material.inputs), material.target).backward()
                material.optimizer.step()
        planned = None if session is None else session.planned
        return live.peak, 0 if planned is None else planned.peak, Counter(planned.choices.values() if planned else ())
    finally:
        if session is not None:
            session.detach()


def judge(material: Material, budget: int, least: int) -> Verdict:
    """Return whether the planner was right about one budget."""
    try:
        measured, predicted, plan = peak_under(material, slimgrad.Budget(budget, counts="live"))
    except ConfigError:
        return Verdict(budget, False, 0, least, {})
    return Verdict(budget, True, predicted, measured, dict(plan))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--bound", default="relative:0.5")
    parser.add_argument("--low", type=float, default=0.97, help="the first budget, in multiples of everything coded")
    parser.add_argument("--high", type=float, default=1.1, help="the last budget, in multiples of plain PyTorch")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    setup = Setup(arguments.model, arguments.batch, arguments.size, arguments.bound, threads=1)
    material = Material(setup)
    policies = slimgrad.Compress(), slimgrad.Recompute(), None
    coded, again, plain = (peak_under(material, policy)[0] for policy in policies)
    verdicts = []
    for budget in np.linspace(arguments.low * coded, arguments.high * plain, N_BUDGETS):
        verdict = judge(material, int(budget), min(coded, again))
        verdicts.append(verdict)
        sizes = f"{verdict.predicted / MIB:8.1f} predicted {verdict.measured / MIB:8.1f} measured"
        word = "fits" if verdict.is_accepted else "refused"
        print(
            f"{budget / MIB:8.1f} MiB {word:8}{sizes}  {'right' if verdict.is_right else 'WRONG'}  {verdict.plan}",
            flush=True,
        )
    n_right = sum(verdict.is_right for verdict in verdicts)
    print(f"{n_right} of {len(verdicts)} right; everything coded {coded / MIB:.1f} MiB, plain {plain / MIB:.1f} MiB")
    if arguments.json:
        rows = [{**asdict(verdict), "is_right": verdict.is_right} for verdict in verdicts]
        found = {"machine": machine.describe(), "setup": asdict(setup), "coded": coded, "plain": plain, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
