"""`slimgrad plan`: will it fit on this GPU, at which batch, how fast; without running the model."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from slimgrad.cli import options
from slimgrad.errors import ConfigError
from slimgrad.lab import arms, plan_table
from slimgrad.planner.hardware import device_of


def plan(
    model: options.Model,
    batch: options.OwnBatch = 0,
    device: Annotated[str, typer.Option(help="A GPU by name, such as a100-40gb, v100-16gb or rtx4090.")] = "a100-40gb",
    size: options.Size = None,
    bound: options.FixedBound = "relative:0.5",
    autocast: options.Autocast = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Predict memory, largest batch and time per step for every way to keep activations."""
    if autocast and autocast not in arms.LOW_PRECISION:
        raise ConfigError(f"expected --autocast {' or '.join(arms.LOW_PRECISION)}, got {autocast!r}")
    found = plan_table.make(arms.Setup(model, batch, size, bound, autocast), device_of(device))
    typer.echo(json_module.dumps(found.to_dict(), indent=2) if json else plan_table.render(found))
