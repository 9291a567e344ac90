"""Data sets by name."""

from pathlib import Path

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab import data
from slimgrad.lab.data import Inputs


def test_fashion_mnist_has_a_black_frame_and_both_parts() -> None:
    source = data.load("fashion-mnist")
    assert (source.name, source.shape, source.classes, source.n_train) == ("fashion-mnist", (1, 32, 32), 10, 5000)
    x, _ = source.batch(0, 4, seed=0)
    assert torch.equal(x[:, :, :2].unique(), x.min().view(1))
    assert sum(len(pair.y) for pair in source.held_out(300)) == 1000
    assert data.load("fashion-mnist", size=16).shape == (1, 16, 16)


def test_random_data_takes_the_shape_of_the_model() -> None:
    assert data.load("random", 48, Inputs((3, 32, 64, 64))).shape == (3, 24, 48, 48)
    assert data.load("random", 48, Inputs((1024,))).shape == (48,)
    x, y = data.load("random", 8, Inputs((3, 64, 64), per_place=True)).batch(0, 2, 0)
    assert (x.shape, y.shape) == ((2, 3, 8, 8), (2, 8, 8))


def test_text_of_the_user_is_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 40)
    assert data.load(f"text:{tmp_path}", size=16).shape == (16,)


def test_a_wrong_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        data.load("imagenet")
    assert all(name in str(error.value) for name in (*data.names(), "got 'imagenet'"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("images", "--data images:/path/to/folder, got 'images'"), ("random:/tmp", "--data random, got 'random:/tmp'")],
)
def test_a_folder_where_one_is_needed_and_only_there(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        data.load(text)


def test_a_size_is_positive() -> None:
    with pytest.raises(ConfigError, match="positive size, got 0"):
        data.load("random", size=0)
