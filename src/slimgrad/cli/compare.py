"""`slimgrad compare`: plain and slim side by side, ending with the table and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from slimgrad.cli import options
from slimgrad.errors import ConfigError
from slimgrad.lab import compare_table, pages
from slimgrad.lab.compare import compare, rows_of
from slimgrad.lab.fleet import RunsFailed
from slimgrad.lab.recipe import DEFAULT_BOUND, Recipe
from slimgrad.lab.words import BOUND_GRAMMAR

ARMS = "plain,slim"


def command(
    model: options.Model,
    data_set: options.Data = "fashion-mnist",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to n - 1, the same in every arm.", min=1)] = 3,
    arms: Annotated[
        str, typer.Option(help=f"By commas: plain, slim, checkpoint, system:comet, {BOUND_GRAMMAR}.")
    ] = ARMS,
    bound: Annotated[str, typer.Option(help="Of the arm slim.")] = DEFAULT_BOUND,
    policy: Annotated[str, typer.Option(help="Of all arms that compress.")] = "compress",
    epochs: options.Epochs = 1.0,
    steps: options.Steps = 0,
    batch: options.Batch = 0,
    size: options.Size = None,
    lr: options.Rate = 0.0,
    settings: options.Settings = None,
    test_every: options.TestEvery = 0,
    audits: options.Audits = 10,
    threads: options.Threads = 0,
    channels_last: options.ChannelsLast = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time; times are only comparable with 1.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of runs, table and page.")] = None,
) -> None:
    """Train MODEL plain and slim, each run in a process of its own; what has finished is not repeated."""
    if bound in ("plain", "checkpoint"):
        raise ConfigError(f"expected a bound for the arm slim, {BOUND_GRAMMAR}; got {bound!r}; arms go after --arms")
    recipe = Recipe(
        model, data_set, bound=bound, policy=policy, options=options.settings_of(settings), size=size, epochs=epochs,
        steps=steps, batch=batch, lr=lr, test_every=test_every, audits=audits, threads=threads,
        channels_last=channels_last,
    )  # fmt: skip
    folder = out or options.folder_of("compare", model, data_set)
    console = Console()
    words = [bound if arm == "slim" else arm for arm in map(str.strip, arms.split(",")) if arm]
    tell = lambda name, what: console.print(f"{name}: {what}")  # noqa: E731
    failed = None
    try:
        results = compare(recipe, words, range(seeds), folder, jobs, tell)
    except RunsFailed as error:
        results, failed = list(error.results.values()), error
    if results:
        pages.write(folder / options.PAGE, results)
        console.print(compare_table.table(rows_of(results), escape(f"{model} on {data_set}")))
        console.print(f"page: {escape(str(folder / options.PAGE))}")
    if failed is not None:
        raise failed
