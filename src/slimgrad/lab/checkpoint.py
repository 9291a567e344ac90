"""Checkpoints: everything that a run needs to go on to the bit, in one file that is always whole.

The file holds tensors, numbers and words only, and is read as such: loading one runs no code that came with it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slimgrad.errors import ConfigError
from slimgrad.files import write_whole

OF_A_RUN = ("recipe", "done", "model", "optimizer", "schedule", "session", "random", "history", "peak")


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state; StorageFull, with the last good file in place, where there is no room."""
    write_whole(path, lambda file: torch.save(dict(state), file))


def load(path: Path) -> dict[str, Any]:
    """Return the state that `save` wrote."""
    if not path.exists():
        raise ConfigError(f"expected a checkpoint to resume from, got no file {path}; begin without --resume")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that were altered may raise anything
        raise damaged(path, error) from error


def load_run(path: Path) -> dict[str, Any]:
    """Return the state of a run; ConfigError where the file holds something else."""
    state = load(path)
    missing = [key for key in OF_A_RUN if not isinstance(state, dict) or key not in state]
    if missing:
        raise damaged(path, KeyError(missing[0]))
    return state


def damaged(path: Path, error: Exception) -> ConfigError:
    """Return what to say of a file that cannot be gone on from."""
    first = (str(error).splitlines() or [""])[0].partition(". ")[0]  # torch goes on with advice that is not for here
    said = f"{type(error).__name__}: {first}"
    return ConfigError(f"expected {path} to be the checkpoint of a run, got {said}; begin again with another --out")


def random_states() -> dict[str, Any]:
    """Return the states of the random numbers of torch, Python and numpy, as tensors, numbers and words."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()  # noqa: NPY002  # whatever a model uses
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, np.int64)), place, has_gauss, gauss],
    }


def set_random_states(states: Mapping[str, Any]) -> None:
    """Put the states back."""
    torch.set_rng_state(states["torch"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, place, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))  # noqa: NPY002
