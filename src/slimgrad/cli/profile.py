"""`slimgrad profile`: where the bytes are, and how sparse activations are over a training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from slimgrad.cli.train import PAGE, options_of
from slimgrad.lab import data, models, profile_page
from slimgrad.lab.density import Observation
from slimgrad.lab.files import write_json
from slimgrad.lab.profile import profile, to_json
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.words import BOUND_GRAMMAR


def command(
    model: Annotated[str, typer.Argument(help=f"{', '.join(models.names())}, or module:function.")],
    data_set: Annotated[str, typer.Option("--data", help=f"{', '.join(data.names())}.")] = "fashion-mnist",
    bound: Annotated[str, typer.Option(help=f"Of the bytes: {BOUND_GRAMMAR}.")] = "relative:0.25",
    epochs: Annotated[float, typer.Option(help="Passes over the data.", min=0)] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps, instead of epochs.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Examples per step; 0: 128 images or 32 texts.", min=0)] = 0,
    size: Annotated[int | None, typer.Option(help="Side of the images, or length of the texts.")] = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate; 0: that of the model.", min=0)] = 0.0,
    option: Annotated[list[str] | None, typer.Option("--set", help="Of the model: width=0.25. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, order and dropout.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0: its own choice.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of profile.json and the page.")] = None,
) -> None:
    """Train MODEL and show where its bytes are, by role and module, and its density from 0 to 100 % of training."""
    recipe = Recipe(
        model, data_set, bound=bound, options=options_of(option or []), size=size, seed=seed, epochs=epochs,
        steps=steps, batch=batch, lr=lr, threads=threads,
    ).filled()  # fmt: skip
    folder = out or Path("out") / "profile" / f"{model.replace(':', '.')}-{data_set.partition(':')[0]}"
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("training", total=recipe.steps)
        result = profile(recipe, lambda run: progress.update(task, completed=run.done))
    write_json(folder / "profile.json", to_json(result))
    profile_page.write(folder / PAGE, result)
    console.print(result["report"])
    console.print(_table(result["observations"]))
    console.print(f"page: {folder / PAGE}")


def _table(found: list[Observation]) -> Table:
    shown = Table(title="what cDMA observed", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for heading in ("claim", "here", "found"):
        shown.add_column(heading)
    for one in found:
        shown.add_row(one.claim, profile_page.VERDICT[one.holds], one.found)
    return shown
