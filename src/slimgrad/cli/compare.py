"""`slimgrad compare`: plain and slim side by side, ending with the table and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimgrad.cli.train import PAGE, options_of
from slimgrad.errors import ConfigError
from slimgrad.lab import compare_table, data, models, pages
from slimgrad.lab.compare import compare, rows_of
from slimgrad.lab.recipe import DEFAULT_BOUND, Recipe
from slimgrad.lab.words import BOUND_GRAMMAR

ARMS = "plain,slim"


def command(
    model: Annotated[str, typer.Argument(help=f"{', '.join(models.names())}, or module:function.")],
    data_set: Annotated[str, typer.Option("--data", help=f"{', '.join(data.names())}.")] = "fashion-mnist",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to n - 1, the same in every arm.", min=1)] = 3,
    arms: Annotated[
        str, typer.Option(help=f"By commas: plain, slim, checkpoint, system:comet, {BOUND_GRAMMAR}.")
    ] = ARMS,
    bound: Annotated[str, typer.Option(help="Of the arm slim.")] = DEFAULT_BOUND,
    policy: Annotated[str, typer.Option(help="Of all arms that compress.")] = "compress",
    epochs: Annotated[float, typer.Option(help="Passes over the data.", min=0)] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps, instead of epochs.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Examples per step; 0: 128 images or 32 texts.", min=0)] = 0,
    size: Annotated[int | None, typer.Option(help="Side of the images, or length of the texts.")] = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate; 0: that of the model.", min=0)] = 0.0,
    option: Annotated[list[str] | None, typer.Option("--set", help="Of the model: width=0.25. Repeatable.")] = None,
    test_every: Annotated[int, typer.Option(help="Steps between tests; 0: ten in all.", min=0)] = 0,
    audits: Annotated[int, typer.Option(help="Times that the gradient's error is measured.", min=0)] = 10,
    threads: Annotated[int, typer.Option(help="Threads of each run; 0: torch's own choice.", min=0)] = 0,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Images as NHWC: often faster.")] = False,
    jobs: Annotated[int, typer.Option(help="Runs at a time; times are only comparable with 1.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of runs, table and page.")] = None,
) -> None:
    """Train MODEL plain and slim, each run in a process of its own; what has finished is not repeated."""
    if bound in ("plain", "checkpoint"):
        raise ConfigError(f"expected a bound for the arm slim, {BOUND_GRAMMAR}; got {bound!r}; arms go after --arms")
    recipe = Recipe(
        model, data_set, bound=bound, policy=policy, options=options_of(option or []), size=size, epochs=epochs,
        steps=steps, batch=batch, lr=lr, test_every=test_every, audits=audits, threads=threads,
        channels_last=channels_last,
    )  # fmt: skip
    recipe.filled()  # what cannot work is said before the first run
    folder = out or Path("out") / "compare" / f"{model.replace(':', '.')}-{data_set.partition(':')[0]}"
    console = Console()
    words = [bound if arm == "slim" else arm for arm in arms.split(",") if arm]
    tell = lambda name, what: console.print(f"{name}: {what}")  # noqa: E731
    results = compare(recipe, words, range(seeds), folder, jobs, tell)
    pages.write(folder / PAGE, results)
    console.print(compare_table.table(rows_of(results), f"{model} on {data_set}"))
    console.print(f"page: {folder / PAGE}")
