"""Is what Noise measures in a run what is there? Two questions, on a network of bench/noise.py trained for a while.

    python bench/measured.py [--model gpt] [--steps 100] [--e2 0.05] [--json docs/results/measured_gpt.json]

1. Errors that travel are found from what each code has left out, rounded to three values, and not from the originals,
   and of large weights their errors' sketches are taken: both ways for the same batches, weights and bounds, sites of
   one role together.
2. What is expected of the whole and of each layer, before any correction, against audits of other batches.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import noise
import numpy as np
import torch

import slimgrad
from slimgrad import measure
from slimgrad.bounds import sensitivity
from slimgrad.bounds.base import Reach, Reading, Request, Site, site_of
from slimgrad.lab import machine
from slimgrad.session import Session

N_BATCHES = 6
EVERYTHING = 100.0  # x the bytes of a step: originals that may be kept
WITHIN = (0.1, 0.9)


def reading_of(
    session: Session, run: noise.Setup, batch: tuple[torch.Tensor, torch.Tensor], request: Request, step: int = 0
) -> Reading:
    """Return what is measured in the forward and backward of one batch, of which the bounds learn nothing."""
    meter = session.tuning.meter
    meter.begin(step, request)
    run.model.zero_grad()
    run.loss(*batch).backward()
    reading = meter.end()
    assert reading is not None, "no gradient reached a parameter"
    return reading


def layers_of(reading: Reading, reach: Reach) -> dict[str, float]:
    """Return the energies of errors, of own ones by site and of those that travel by layer."""
    errors = [error for error in reading.errors if error.reach == reach]
    if reach == "own":
        return {str(error.sites): error.noise2 for error in errors}
    return {layer: value for error in errors for layer, value in error.layers.items()}


def by_what_is_left_out(session: Session, run: noise.Setup, sites: frozenset[Site]) -> dict[str, Any]:
    """Return energies found from what codes left out / those found from the originals."""
    wholes: dict[Reach, list[float]] = {"own": [], "far": []}
    layers: dict[Reach, list[float]] = {"own": [], "far": []}
    for number, batch in enumerate(run.held[:N_BATCHES]):
        exact = reading_of(session, run, batch, Request(errors=sites, travels=sites))
        found = reading_of(session, run, batch, Request(travels=sites, is_rough=True), number)
        for reach in wholes:
            true, ours = layers_of(exact, reach), layers_of(found, reach)
            if sum(true.values()) > 0:
                wholes[reach].append(sum(ours.values()) / sum(true.values()))
                layers[reach] += [ours[name] / value for name, value in true.items() if value > 0]
    return {
        reach: {"whole": [min(values), max(values)], "parts": list(np.quantile(layers[reach], WITHIN))}
        for reach, values in wholes.items()
        if values
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Is what Noise measures in a run what is there?")
    parser.add_argument("--model", choices=noise.OPTIONS, default="gpt")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--e2", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run, bound = noise.setup(options.model, options.batch, options.steps, 0), slimgrad.Noise(options.e2)
    with slimgrad.attach(run.model, run.criterion, bound=bound, optimizer=run.optimizer, min_bytes=1024) as session:
        for x, y in run.training:
            run.step(x, y)
        found = _found(session, run, bound)
    print(json.dumps(found, indent=1))
    if options.json:
        how = {"model": options.model, "steps": options.steps, "batch": options.batch, "e2": options.e2}
        options.json.write_text(json.dumps({"machine": machine.describe(), **how, **found}, indent=1) + "\n")


def _found(session: Session, run: noise.Setup, bound: slimgrad.Noise) -> dict[str, Any]:
    state = session.tuning.states[bound]
    session.tuning.audited = lambda noise, layers, step: None  # pyright: ignore[reportAttributeAccessIssue]
    audits = [session.audit(lambda batch=batch: run.loss(*batch)) for batch in run.held]
    layers = sensitivity.loads(state["sites"])
    numels = run.numels
    found = {
        "expected by parameters": sum(numels[name] * layers.get(name, 0.0) for name in numels) / sum(numels.values()),
        "audits by parameters": float(np.mean([noise.by_parameters(audit, numels) for audit in audits])),
        "expected": layers[sensitivity.ALL],
        "audits": float(np.mean([audit.noise for audit in audits])),
        "calibration": state["calibration"],
    }
    session.tuning.end_step = session.tuning.begin_step = lambda step: None  # pyright: ignore[reportAttributeAccessIssue]
    measure.QUOTA = EVERYTHING
    roles: dict[str, set[Site]] = {}
    for key, entry in state["sites"].items():
        if entry["rel"]:
            roles.setdefault(entry["role"], set()).add(site_of(key))
    left_out = {role: by_what_is_left_out(session, run, frozenset(sites)) for role, sites in roles.items()}
    return {"against audits": found, "left out / originals": left_out}


if __name__ == "__main__":
    main()
