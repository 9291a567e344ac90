"""Checkpoint files and random states."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab import checkpoint


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))]  # noqa: NPY002


def test_all_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    drawn()  # leaves the second half of a pair of gaussians cached
    checkpoint.save(tmp_path / "a.pt", {"random": checkpoint.random_states()})
    first = drawn()
    assert drawn() != first
    checkpoint.set_random_states(checkpoint.load(tmp_path / "a.pt")["random"])
    assert drawn() == first


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got no file .*a\.pt; begin without --resume"):
        checkpoint.load(tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes(b"PK half of one")
    with pytest.raises(ConfigError, match=r"expected .*a\.pt to be the checkpoint of a run"):
        checkpoint.load(tmp_path / "a.pt")


@pytest.mark.parametrize("content", [[1, 2], {"0.weight": torch.zeros(2)}, "folder"])
def test_what_is_no_checkpoint_of_a_run_is_refused(content: object, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    if content == "folder":
        path.mkdir()
    else:
        torch.save(content, path)
    with pytest.raises(ConfigError, match=r"expected .*a\.pt to be the checkpoint of a run, got"):
        checkpoint.load_run(path)
