"""What sketching a weight's gradient saves, and how much a figure scatters for it.

    python bench/sketches.py [--json docs/results/sketches.json]

Of a convolution or linear layer: seconds for the whole gradient of the weight / for its sketch (interleaved, one
thread, medians), and the standard deviation of the sketch's energy over signs, as a share of the true one. The error
is the rounding error of the input at a step of half its RMS, so that it is as coherent as real ones are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimgrad.lab import machine
from slimgrad.products import Signs, product_of

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv 3x3, 64 to 64": (lambda: nn.Conv2d(64, 64, 3, padding=1), (16, 64, 56, 56)),
    "conv 1x1, 64 to 256": (lambda: nn.Conv2d(64, 256, 1), (16, 64, 56, 56)),
    "conv 3x3, 32 to 32": (lambda: nn.Conv2d(32, 32, 3, padding=1), (16, 32, 14, 14)),
    "linear, 64 to 256": (lambda: nn.Linear(64, 256), (1024, 64)),
    "linear, 256 to 64": (lambda: nn.Linear(256, 64), (1024, 256)),
    "linear, 768 to 3072": (lambda: nn.Linear(768, 3072), (2048, 768)),
}
N_ROUNDS, N_SIGNS, STEP = 9, 64, 0.5


def figures(make: Any, size: tuple[int, ...]) -> dict[str, float]:
    torch.manual_seed(0)
    layer, x = make(), torch.randn(size).relu()
    product = product_of(layer(x.clone().requires_grad_()).grad_fn)
    assert product is not None
    step = STEP * float(x.square().mean().sqrt())
    wrong, grad = (x / step).round() * step - x, torch.randn_like(layer(x)).detach()
    seconds: dict[str, list[float]] = {"whole": [], "sketch": []}
    for _ in range(N_ROUNDS):
        for name, run in (
            ("whole", lambda: product.on_weight(grad, wrong)),
            ("sketch", lambda: product.sketch(grad, wrong, Signs(0))),
        ):
            begun = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begun)
    true = product.on_weight(grad, wrong).square().sum()
    energies = torch.stack([product.sketch(grad, wrong, Signs(seed)).square().sum() for seed in range(N_SIGNS)]) / true
    return {
        "ms of the whole": 1e3 * statistics.median(seconds["whole"]),
        "whole / sketch": statistics.median(seconds["whole"]) / statistics.median(seconds["sketch"]),
        "mean energy": float(energies.mean()),
        "scatter": float(energies.std()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What sketching a weight's gradient saves, and what it costs.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, (make, size) in LAYERS.items():
        found[name] = figures(make, size)
        print(f"{name:22s}", ", ".join(f"{key} {value:.2f}" for key, value in found[name].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.describe(), "layers": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
