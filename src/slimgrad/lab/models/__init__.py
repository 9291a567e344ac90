"""The networks that tests, benches and the command line train, by name.

    model = models.build("resnet50", width=0.25, stem="small")
    inputs, target = models.example("resnet50", batch=8, size=32)
    loss = models.criterion("resnet50")(model(inputs), target)

Every model is a plain nn.Module with one extra method, `segments()`: its repeated blocks in order, which is where
checkpointing per block would cut it. `build("package.module:function", ...)` calls the user's own function instead; an
attribute `input_shape` on that function says which input it takes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from slimgrad.errors import ConfigError, SlimgradError
from slimgrad.lab.models import convnets, sequences, unets

__all__ = ["build", "criterion", "example", "input_shape", "is_per_place", "maker", "names"]


class Entry(NamedTuple):
    """One model of the table: how to make it, and what it takes and gives."""

    make: Callable[..., nn.Module]
    input_shape: tuple[int, ...]  # without the batch; one dimension means tokens
    target: str  # "class": one label per example; "place": one per pixel or token


MODELS: dict[str, Entry] = {
    "alexnet": Entry(convnets.AlexNet, (3, 224, 224), "class"),
    "vgg16": Entry(convnets.Vgg16, (3, 224, 224), "class"),
    "vgg16_bn": Entry(functools.partial(convnets.Vgg16, norm=True), (3, 224, 224), "class"),
    "resnet18": Entry(functools.partial(convnets.ResNet, depth=18), (3, 224, 224), "class"),
    "resnet50": Entry(functools.partial(convnets.ResNet, depth=50), (3, 224, 224), "class"),
    "mobilenet": Entry(convnets.MobileNet, (3, 224, 224), "class"),
    "unet2d": Entry(functools.partial(unets.UNet, dims=2), (3, 256, 256), "place"),
    "unet3d": Entry(functools.partial(unets.UNet, dims=3, base=16), (3, 32, 64, 64), "place"),
    "gpt": Entry(sequences.Gpt, (1024,), "place"),
    "vit": Entry(sequences.Vit, (3, 224, 224), "class"),
    "lstm": Entry(sequences.LstmClassifier, (28, 28), "class"),
}


class PlaceLoss(nn.Module):
    """Cross-entropy over all tokens, for logits whose classes lie in the last dimension."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def names() -> list[str]:
    """Return the names that `build` knows."""
    return list(MODELS)


def build(name: str, **options: object) -> nn.Module:
    """Return a new model, initialised from the global random state of torch."""
    make, given = maker(name), ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ConfigError(f"expected options that {name} has, got {given}: {error}") from error
    except ValueError:
        pass  # a function of some extension, which does not say what it takes
    try:
        model = make(**options)
    except SlimgradError:
        raise
    except Exception as error:  # whatever a function does
        wish = f"a model from {name} with {given}"
        raise ConfigError(f"expected {wish}, got {type(error).__name__}: {error} ({_place(error)})") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected {name!r} to return an nn.Module, got {type(model).__name__}")
    return model


def _place(error: Exception) -> str:
    """Return where an error was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}; SLIMGRAD_DEBUG=1 shows the way there"


def input_shape(name: str) -> tuple[int, ...]:
    """Return the default shape of one input, without the batch."""
    if name in MODELS:
        return MODELS[name].input_shape
    shape = getattr(maker(name), "input_shape", None)
    if shape is None:
        raise ConfigError(
            f"expected {name!r} to say what it takes, got no attribute 'input_shape'; "
            f"write {name.partition(':')[2]}.input_shape = (3, 224, 224) below the function"
        )
    return tuple(shape)


def example(
    name: str, batch: int, size: int | None = None, classes: int = 10, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a random input and target; `size` replaces the side of the image, or the length of the text.

    Classes are drawn below `classes`, which therefore must not exceed what the model was built with.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = _resized(input_shape(name), size)
    if len(shape) == 1:
        tokens = torch.randint(classes, (batch, shape[0] + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    inputs = torch.randn(batch, *shape, generator=generator)
    places = shape[1:] if is_per_place(name) else ()
    return inputs, torch.randint(classes, (batch, *places), generator=generator)


def is_per_place(name: str) -> bool:
    """Return whether the model of the table has a target per pixel or token."""
    return name in MODELS and MODELS[name].target == "place"


def criterion(name: str) -> nn.Module:
    """Return the loss module that fits the model's output and the target of `example`."""
    return PlaceLoss() if len(input_shape(name)) == 1 else nn.CrossEntropyLoss()


def _resized(shape: tuple[int, ...], size: int | None) -> tuple[int, ...]:
    if size is None:
        return shape
    if len(shape) < 3:
        return (size, *shape[1:])
    longest = max(shape[1:])
    return (shape[0], *(max(1, side * size // longest) for side in shape[1:]))


def maker(name: str) -> Callable[..., nn.Module]:
    """Return what makes the model; ConfigError, with the known names, where nothing does."""
    if name in MODELS:
        return MODELS[name].make
    module, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(
            f"expected one of the models {', '.join(names())}, or 'module:function' for your own, got {name!r}"
        )
    if not {"", os.getcwd()} & set(sys.path):  # `python -m` has it there, a console script does not
        sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., nn.Module] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"expected {name!r} to be an importable function, got {type(error).__name__}: {error}; "
            "run from the folder that holds the module, or set PYTHONPATH to it"
        ) from error
    if not callable(found):
        raise ConfigError(f"expected {name!r} to be a function that returns a model, got {type(found).__name__}")
    return found
