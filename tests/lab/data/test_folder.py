"""Folders of images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slimgrad import ConfigError
from slimgrad.lab.data.folder import image_folder, read_image


def write(path: Path, value: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def test_every_fifth_image_of_a_class_is_held_out(tmp_path: Path) -> None:
    for name, n in (("cat", 6), ("dog", 10)):
        for number in range(n):
            write(tmp_path / name / f"{number:02d}.png", 100 * (name == "dog") + number)
    train, test = image_folder(tmp_path, side=4)
    assert test.x[:, 0, 0, 0].tolist() == [4, 104, 109]
    assert test.y.tolist() == [0, 1, 1]
    assert train.x.shape == (13, 3, 4, 4)
    assert train.y.tolist() == [0] * 5 + [1] * 8


def test_a_test_folder_is_used_where_there_is_one(tmp_path: Path) -> None:
    for part, value in (("train", 1), ("val", 2)):
        for name in ("a", "b"):
            write(tmp_path / part / name / "0.png", value)
    train, test = image_folder(tmp_path, side=4)
    assert (train.x.unique().tolist(), test.x.unique().tolist()) == ([1], [2])


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no pixels")
    with pytest.raises(ConfigError, match=r"a\.png to be an image"):
        read_image(tmp_path / "a.png")
    with pytest.raises(ConfigError, match="which is none"):
        image_folder(tmp_path / "absent", side=4)


def test_a_class_with_too_few_images_to_hold_any_out_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a" / "0.png", 1)
    with pytest.raises(ConfigError, match="got none in one of them"):
        image_folder(tmp_path, side=4)
