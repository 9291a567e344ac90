"""Results of runs that never ran, for tests of tables and pages: small, and with numbers that are easy to follow."""

from __future__ import annotations

from typing import Any


def result(
    arm: str = "plain", seed: int = 0, accuracy: float = 0.5, unit: str = "images", **final: Any
) -> dict[str, Any]:
    is_slim = arm not in ("plain", "checkpoint")
    step = 0.1 if not is_slim else 0.12
    train = [{"step": s, "loss": 2.0 / s, "accuracy": 0.1 * s, "seconds": step} for s in (1, 2)]
    noise = []
    if is_slim:
        train = [{**point, "saved_in": 1000, "saved_out": 100 // point["step"]} for point in train]
        noise = [{"step": 2, "measured": 0.03, "expected": 0.04, "ratio": 12.0, "rel": 0.3}]
    layer = {"module": "blocks.0", "role": "conv input", "saved_in": 4 << 20, "saved_out": 1 << 18}
    return {
        "recipe": {
            "model": "resnet18", "data": "cifar10", "arm": "slim" if is_slim else arm, "bound": arm, "seed": seed,
            "steps": 2, "batch": 8, "optimizer": "sgd", "lr": 0.1, "options": {"width": 0.25},
        },
        "machine": {"slimgrad": "0", "torch": "2", "processor": "abacus", "kernels": "beads"},
        "unit": unit,
        "final": {
            "test_loss": 1.0, "test_accuracy": accuracy, "train_loss": 1.0, "seconds_per_step": step,
            "examples_per_second": 8 / step, "saved_ratio": 13.3 if is_slim else None,
            "noise": 0.03 if is_slim else None, "peak_resident": 9 << 20,
            "peak_live": (2 << 20) if is_slim else (8 << 20), "static": 1 << 20, **final,
        },
        "history": {"train": train, "test": [{"step": 2, "loss": 1.0, "accuracy": accuracy}], "noise": noise},
        "layers": [layer] if is_slim else [],
        "timeline": {"static": 1, "peak": 8 << 20, "forward": 0.5, "samples": [0, 4 << 20, 8 << 20, 0]},
    }  # fmt: skip
