"""CIFAR-10 from the package, from pickles and from folders; the package here has 4 + 2 images."""

import json
import pickle
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from slimgrad import ConfigError
from slimgrad.lab.data import cifar
from slimgrad.lab.data.cifar import PICKLES, cifar10


def images(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


@pytest.fixture
def in_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An npm package of one image per training file; returns how often it was fetched."""
    fetched: list[int] = []

    @contextmanager
    def unpacked(package):
        fetched.append(1)
        for number, name in enumerate([*PICKLES, "test_batch"]):
            pixels = images(1, number).transpose(0, 2, 3, 1).reshape(1, 1024, 3)
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        (tmp_path / "train_lables.json").write_text(json.dumps([0, 1, 2, 3, 4]))
        (tmp_path / "test_lables.json").write_text("[9]")
        yield tmp_path

    monkeypatch.setattr(cifar, "unpacked", unpacked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fetched


def test_a_row_of_pixels_is_an_image_and_the_second_load_fetches_nothing(in_cache: list[int]) -> None:
    train, test = cifar10()
    assert np.array_equal(train.x.numpy(), np.concatenate([images(1, number) for number in range(5)]))
    assert np.array_equal(test.x.numpy(), images(1, 5))
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 2, 3, 4], [9])
    assert torch.equal(cifar10()[0].x, train.x)
    assert len(in_cache) == 1


def write_pickles(folder: Path) -> None:
    for number, name in enumerate([*PICKLES, "test_batch"]):
        content = {b"data": images(2, number).reshape(2, -1), b"labels": [number, number]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def test_pickles_of_the_user_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    write_pickles(folder)
    train, test = cifar10(tmp_path)
    assert np.array_equal(train.x[2:4].numpy(), images(2, 1))
    assert train.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert test.y.tolist() == [5, 5]


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pickles(tmp_path)
    (tmp_path / PICKLES[2]).write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(ConfigError, match=r"data_batch_3 to be a batch of CIFAR-10, got .*print"):
        cifar10(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_folder_of_neither_kind_says_what_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one folder of images per class"):
        cifar10(tmp_path)
