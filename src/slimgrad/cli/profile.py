"""`slimgrad profile`: where the bytes are, and how sparse activations are over a training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from slimgrad.cli import options
from slimgrad.files import write_json
from slimgrad.lab import profile_page
from slimgrad.lab.density import Observation
from slimgrad.lab.profile import profile, to_json
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.words import BOUND_GRAMMAR


def command(
    model: options.Model,
    data_set: options.Data = "fashion-mnist",
    bound: Annotated[str, typer.Option(help=f"Of the bytes: {BOUND_GRAMMAR}.")] = "relative:0.25",
    epochs: options.Epochs = 1.0,
    steps: options.Steps = 0,
    batch: options.Batch = 0,
    size: options.Size = None,
    lr: options.Rate = 0.0,
    settings: options.Settings = None,
    seed: options.Seed = 0,
    threads: options.Threads = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of profile.json and the page.")] = None,
) -> None:
    """Train MODEL and show where its bytes are, by role and module, and its density from 0 to 100 % of training."""
    recipe = Recipe(
        model, data_set, bound=bound, options=options.settings_of(settings), size=size, seed=seed, epochs=epochs,
        steps=steps, batch=batch, lr=lr, threads=threads,
    ).filled()  # fmt: skip
    folder = out or options.folder_of("profile", model, data_set)
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("training", total=recipe.steps)
        result = profile(recipe, lambda run: progress.update(task, completed=run.done))
    write_json(folder / "profile.json", to_json(result))
    profile_page.write(folder / options.PAGE, result)
    console.print(result["report"])
    console.print(_table(result["observations"]))
    console.print(f"page: {escape(str(folder / options.PAGE))}")


def _table(found: list[Observation]) -> Table:
    shown = Table(title="what cDMA observed", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for heading in ("claim", "here", "found"):
        shown.add_column(heading)
    for one in found:
        shown.add_row(one.claim, profile_page.VERDICT[one.holds], escape(one.found))
    return shown
