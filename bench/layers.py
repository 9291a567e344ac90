"""How far a layer's own error depends on the batch of an audit: many audits of one network under the same bounds.

    python bench/layers.py [--model mobilenet] [--steps 80] [--json docs/results/layers.json]

The narrow network of bench/noise.py is trained for some steps under Noise(0.05); then one batch after the other is
audited, and nothing learns from it. Of each of the layers whose error is the largest in some batch: what part of the
gradient it holds there, its error as a share of its own gradient of that batch, and as a share of what it usually
holds; then the same over all batches together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from noise import OPTIONS, batches

import slimgrad
from slimgrad.audit import Audit
from slimgrad.lab import machine, models

E2, BATCH, N_LAYERS = 0.05, 32, 3


def audits_of(name: str, steps: int, seed: int) -> list[Audit]:
    """Return the audits of all held-out batches after a training."""
    torch.manual_seed(seed)
    model, criterion = models.build(name, **OPTIONS[name]), models.criterion(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training, held_out = batches(name, BATCH, steps, seed)
    with slimgrad.attach(model, criterion, bound=slimgrad.Noise(E2), min_bytes=1024) as session:
        for x, y in training:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        session.tuning.audited = lambda noise, layers, step: None  # pyright: ignore[reportAttributeAccessIssue]
        return [session.audit(lambda x=x, y=y: criterion(model(x), y)) for x, y in held_out]


def of_layer(layer: str, audits: list[Audit]) -> dict[str, Any]:
    """Return parts and errors of a layer in each audit, and in all together."""
    totals = [sum(share.energy for share in audit.parameters.values()) for audit in audits]
    shares = [audit.layers[layer] for audit in audits]
    parts = [share.energy / total for share, total in zip(shares, totals, strict=True)]
    usual = sum(parts) / len(parts)
    return {
        "parts": parts,
        "of_this_gradient": [share.noise for share in shares],
        "of_what_is_usual": [share.error2 / total / usual for share, total in zip(shares, totals, strict=True)],
        "over_all": sum(share.error2 for share in shares) / sum(share.energy for share in shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="How far a layer's own error depends on the batch of an audit.")
    parser.add_argument("--model", choices=[name for name in OPTIONS if name != "gpt"], default="mobilenet")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    audits = audits_of(arguments.model, arguments.steps, arguments.seed)
    worst = {layer: max(audit.layers[layer].noise for audit in audits) for layer in audits[0].counted}
    layers = sorted(worst, key=lambda layer: -worst[layer])[:N_LAYERS]
    found = {layer: of_layer(layer, audits) for layer in layers}
    noise = [audit.noise for audit in audits]
    print("the whole", *(f"{value:.2g}" for value in noise))
    for layer, figures in found.items():
        print(layer)
        for name, values in figures.items():
            print(f"  {name:18s}", *(f"{value:.2g}" for value in (values if isinstance(values, list) else [values])))
    if arguments.json:
        record = {"machine": machine.describe(), "model": arguments.model, "steps": arguments.steps, "noise": noise}
        record["layers"] = found
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
