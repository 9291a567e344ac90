"""`slimgrad bench`: measurements that users can repeat: `codecs`, and `steps` (see bench_steps.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimgrad.cli import bench_steps
from slimgrad.lab import codec_bench, codec_table, machine, recorded
from slimgrad.lab.samples import synthetic

app = typer.Typer(help="Measure codecs and training steps on this machine.", no_args_is_help=True)

MEBIBYTE = 1 << 20

app.command("steps")(bench_steps.command)


@app.command()
def codecs(
    json: Annotated[Path | None, typer.Option(help="Write machine and rows to this JSON file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    only: Annotated[str, typer.Option(help="Only this code, by the name in the table.")] = "",
    step: Annotated[list[float] | None, typer.Option(help="Step in RMS; may be repeated. Default 0.5 and 1.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of our codecs; memcpy has one.", min=1)] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small data and one round, to see that all works.")] = False,
) -> None:
    """Compare ratio, speed and fidelity of all codecs, and of SZ3, ZFP and zstd where installed, at the same bound."""
    samples = [synthetic(MEBIBYTE if quick else 64 * MEBIBYTE)]
    samples += recorded.activations(steps=2, batch=8) if quick else recorded.activations()
    steps = tuple(step or (0.5, 1.0))
    rounds = 1 if quick else codec_bench.ROUNDS
    rows = list(codec_bench.measure(samples, steps, rounds, threads, only))
    Console().print(codec_table.table(rows))
    if json:
        codec_table.write_json(json, rows, machine.describe())
    if csv:
        codec_table.write_csv(csv, rows)
