"""Images of one's own: a folder per class, with or without `train` and `test` (or `val`) above them.

Without a test folder, every fifth image of a class is held out. Pillow reads the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from slimgrad.errors import ConfigError
from slimgrad.lab.data.base import Pair

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".webp"}
HELD_OUT = 5  # every fifth image
HELD_OUT_NAMES = ("test", "val", "valid", "validation")


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """Return the pixels of a file, (height, width, 3) bytes; with `side`, its middle square scaled to that size."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ConfigError("expected Pillow, to decode images, got none; pip install pillow") from error
    try:
        with Image.open(path) as image:
            pixels = image.convert("RGB")
            return np.asarray(pixels if side is None else ImageOps.fit(pixels, (side, side)))
    except OSError as error:
        raise ConfigError(f"expected {path} to be an image, got {error}") from error


def image_folder(root: Path, side: int) -> tuple[Pair, Pair]:
    """Return training and test images of a folder, (n, 3, side, side) bytes; classes in the order of their names."""
    train_folder = root / "train" if (root / "train").is_dir() else root
    test_folder = next((root / name for name in HELD_OUT_NAMES if (root / name).is_dir()), None)
    classes = _classes(train_folder)
    if not classes:
        raise ConfigError(
            f"expected {train_folder} to hold one folder of images per class, got none; "
            "make it folder/CLASS/*.png, or folder/train/CLASS/*.png and folder/test/CLASS/*.png"
        )
    files = _files(train_folder, classes)
    if test_folder is None:
        ranks = [rank for name in classes for rank in range(sum(label == classes.index(name) for _, label in files))]
        held = [file for file, rank in zip(files, ranks, strict=True) if rank % HELD_OUT == HELD_OUT - 1]
        files = [file for file, rank in zip(files, ranks, strict=True) if rank % HELD_OUT != HELD_OUT - 1]
    else:
        held = _files(test_folder, classes)
    return _read(files, side), _read(held, side)


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of images, got {folder}, which is none")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _images(path))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _files(folder: Path, classes: list[str]) -> list[tuple[Path, int]]:
    return [(path, label) for label, name in enumerate(classes) for path in _images(folder / name)]


def _read(files: list[tuple[Path, int]], side: int) -> Pair:
    if not files:
        raise ConfigError("expected images in both parts of the folder, got none in one of them; add some per class")
    pixels = np.stack([read_image(path, side) for path, _ in files]).transpose(0, 3, 1, 2)
    return Pair(torch.from_numpy(np.ascontiguousarray(pixels)), torch.tensor([label for _, label in files]))
