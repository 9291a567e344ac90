"""Arguments that several verbs take, each defined once: what it is called, what it means, what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slimgrad.errors import ConfigError
from slimgrad.lab import data, models

PAGE = "page.html"  # in the folder of a verb's results

Model = Annotated[str, typer.Argument(help=f"{', '.join(models.names())}, or module:function.")]
Data = Annotated[str, typer.Option("--data", help=f"{', '.join(data.names())}.")]
Epochs = Annotated[float, typer.Option(help="Passes over the data.", min=0)]
Steps = Annotated[int, typer.Option(help="Steps, instead of epochs.", min=0)]
Batch = Annotated[int, typer.Option(help="Examples per step; 0: 128 images or 32 texts.", min=0)]
Size = Annotated[int | None, typer.Option(help="Side of the images, or length of the texts.", min=1)]
Rate = Annotated[float, typer.Option("--lr", help="Peak learning rate; 0: that of the model.", min=0)]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Of the model: width=0.25. Repeatable.")]
Seed = Annotated[int, typer.Option(help="Of weights, order and dropout.")]
TestEvery = Annotated[int, typer.Option(help="Steps between tests; 0: ten in all.", min=0)]
Audits = Annotated[int, typer.Option(help="Times that the gradient's error is measured.", min=0)]
Threads = Annotated[int, typer.Option(help="Threads of torch in a run; 0: its own choice.", min=0)]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Images as NHWC: often faster.")]
Autocast = Annotated[str, typer.Option(help="bfloat16 or float16.")]
FixedBound = Annotated[str, typer.Option(help="exact, relative:0.5 or absolute:0.01.")]
OwnBatch = Annotated[int, typer.Option(help="Examples per step; 0 for the model's own.", min=0)]


def settings_of(words: list[str] | None) -> dict[str, Any]:
    """Return {"width": 0.25} of ["width=0.25"]; values that are no numbers or truths are words."""
    settings: dict[str, Any] = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"expected an option of the model such as --set width=0.25, got {word!r}")
        try:
            settings[key] = json.loads(value.lower() if value in ("True", "False") else value)
        except json.JSONDecodeError:
            settings[key] = value
    return settings


def folder_of(verb: str, model: str, data_set: str, *rest: str) -> Path:
    """Return where a verb puts its results when it is not told: out/verb/model-data-rest."""
    return Path("out") / verb / "-".join([model.replace(":", "."), data_set.partition(":")[0], *rest])
