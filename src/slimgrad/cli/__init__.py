"""The `slimgrad` command: one file per verb, each a thin layer over slimgrad.lab.

An error of slimgrad ends the command with its message and status 2; with SLIMGRAD_DEBUG=1 the traceback is shown.
"""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console
from rich.markup import escape

from slimgrad.cli import bench, compare, doctor, plan, profile, train
from slimgrad.errors import SlimgradError

app = typer.Typer(
    name="slimgrad",
    help="PyTorch training in less memory: activations kept compressed, under an error bound.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("compare")(compare.command)
app.command("train")(train.command)
app.command("profile")(profile.command)
app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.add_typer(bench.app, name="bench")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; `arguments` default to those of the process."""
    try:
        app(args=arguments, prog_name="slimgrad")
    except SlimgradError as error:
        if os.environ.get("SLIMGRAD_DEBUG", "0") not in ("", "0"):
            raise
        Console(stderr=True).print(f"[bold red]slimgrad:[/] {escape(str(error))}")
        sys.exit(2)
