"""Which examples make up a batch."""

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab.data.base import generator, picked


def test_a_pass_visits_every_example_once_and_the_next_in_another_order() -> None:
    passes = [torch.cat([picked(12, step, 4, seed=5) for step in range(start, start + 3)]) for start in (0, 3)]
    assert all(one.sort().values.tolist() == list(range(12)) for one in passes)
    assert not torch.equal(*passes)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    assert torch.equal(picked(50, 7, 5, seed=1), picked(50, 7, 5, seed=1))
    assert not torch.equal(picked(50, 7, 5, seed=1), picked(50, 7, 5, seed=2))


def test_neighbouring_seeds_have_other_numbers() -> None:
    drawn = {float(torch.rand(1, generator=generator(seed, step))) for seed in range(8) for step in range(8)}
    assert len(drawn) == 64


def test_a_batch_larger_than_the_data_says_what_to_type() -> None:
    with pytest.raises(ConfigError, match="at most 30 examples, got 31; write --batch 3"):
        picked(30, 0, 31, seed=0)
