"""`slimgrad bench steps`: time and memory of a training step, plain against slim against checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimgrad.cli import options
from slimgrad.errors import ConfigError
from slimgrad.files import write_json
from slimgrad.lab import arms, machine, peak, steps, steps_table


def command(
    model: Annotated[list[str] | None, typer.Option(help="A model of the lab, or module:function. Repeatable.")] = None,
    batch: options.OwnBatch = 0,
    size: options.Size = None,
    bound: options.FixedBound = "relative:0.5",
    autocast: options.Autocast = "",
    threads: options.Threads = 0,
    channels_last: options.ChannelsLast = False,
    rounds: Annotated[int, typer.Option(help="Timed rounds of all arms.", min=1)] = steps.ROUNDS,
    only: Annotated[str, typer.Option(help="time or peak; both without it.")] = "",
    json: Annotated[Path | None, typer.Option(help="Write machine and results to this JSON file.")] = None,
) -> None:
    """Measure a training step: time interleaved in one process, peak memory in fresh processes."""
    if only not in ("", "time", "peak"):
        raise ConfigError(f"expected --only time or --only peak, got {only!r}")
    console = Console()
    results = []
    for name in model or ["resnet50"]:
        setup = arms.Setup(name, batch, size, bound, autocast, threads, channels_last).filled()
        result = steps_table.Result(setup)
        if only != "peak":
            result.times = steps.measure(setup, rounds)
            result.huge_pages = steps.measure_with_huge_pages(setup, rounds)
        if only != "time":
            result.weights = peak.measure(setup)
        results.append(result)
    console.print(steps_table.table(results))
    if json:
        content = {"machine": machine.describe(), "results": [result.to_dict() for result in results]}
        write_json(json, content)
