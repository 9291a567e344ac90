"""Which options make a model of the table fit a data set: channels, classes, and a stem that suits small images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slimgrad.errors import ConfigError

SMALL_SIDE = 64  # up to here, images would vanish in a stem made for ImageNet


def fitting(name: str, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    """Return the options for inputs of this shape; of models that are not ours, nothing is known."""
    kind = name.rstrip("0123456789").removesuffix("_bn").rstrip("0123456789")
    if ":" in name:
        return {}
    if (kind == "gpt") != (len(shape) == 1):
        wanted = "text, such as --data sotu" if kind == "gpt" else "images, such as --data fashion-mnist"
        raise ConfigError(f"expected {wanted}, for {name}, got inputs of shape {list(shape)}")
    if kind == "gpt":
        return {"classes": classes, "context": shape[0]} | ({} if shape[0] > 512 else SMALL_GPT)
    if kind == "lstm":
        return {"classes": classes, "features": shape[-1]}
    options: dict[str, Any] = {"classes": classes, "in_channels": shape[0]}
    if kind == "vit":
        options["size"] = shape[-1]
    return options | (SMALL.get(kind, {}) if shape[-1] <= SMALL_SIDE else {})


SMALL_GPT = {"width": 128, "depth": 4, "heads": 4, "dropout": 0.0}
SMALL: Mapping[str, dict[str, Any]] = {
    "resnet": {"stem": "small"},
    "alexnet": {"stem": "small", "hidden": 512},
    "vgg": {"hidden": 512, "pool": 1},
    "vit": {"patch": 4, "width": 192, "depth": 6, "heads": 3},
    "unet2d": {"base": 16},
    "unet3d": {"base": 8},
}
