"""`slimgrad doctor`: what is installed, which kernels run, and whether they work here."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from slimgrad.lab import machine
from slimgrad.lab.self_test import run


def doctor(
    self_test: Annotated[bool, typer.Option("--self-test", help="Round-trip data through every codec.")] = False,
) -> None:
    """Show versions, kernels, extras and settings; with --self-test, check every codec on this machine."""
    console = Console()
    for shown in (_facts(), _extras(), _variables()):
        console.print(shown)
        console.print()
    if self_test and not _passes(console):
        raise typer.Exit(1)


def _facts() -> Table:
    shown = _grid()
    for name, fact in machine.describe().items():
        shown.add_row(name, fact)
    return shown


def _extras() -> Table:
    shown = _grid("extras")
    for extra, packages in machine.extras().items():
        found = ", ".join(f"{package} {version or 'missing'}" for package, version in packages.items())
        is_whole = all(packages.values())
        shown.add_row(extra, found if is_whole else f'{found}; pip install "slimgrad\\[{extra}]"')
    return shown


def _variables() -> Table:
    shown = _grid("environment")
    for variable, meaning in machine.VARIABLES.items():
        shown.add_row(variable, f"{os.environ.get(variable, 'not set')}  [dim]({meaning})[/]")
    return shown


def _passes(console: Console) -> bool:
    """Run the self-test, show one line per codec and dtype, and return whether all went well."""
    shown = _grid("self-test")
    faults = 0
    for outcome in run():
        faults += bool(outcome.fault)
        verdict = f"[bold red]failed[/]: {outcome.fault}" if outcome.fault else "ok"
        shown.add_row(outcome.codec, f"{str(outcome.dtype).removeprefix('torch.')} {verdict}")
    console.print(shown)
    console.print("self-test passed" if not faults else f"self-test: {faults} failed; please report this output")
    return not faults


def _grid(title: str | None = None) -> Table:
    shown = Table(
        title=title, title_style="bold italic", title_justify="left", box=None, show_header=False, pad_edge=False
    )
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    return shown
