"""Shows the rows of the codec bench: a table for people, JSON and CSV for programs, all with the same numbers."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from itertools import groupby
from pathlib import Path

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slimgrad import files
from slimgrad.lab.codec_bench import Row

LEGEND = (
    "step: 2 x bound, in RMS of the non-zero values. ratio: original / stored bytes. bits: per value. encode, decode: "
    "speed in multiples of memcpy. error: worst |error| / bound, at most 1 if the bound holds. signs, zeros: kept."
)


def table(rows: list[Row]) -> Group:
    """Return one table per sample, in the order of the rows."""
    tables = [_table(list(group)) for _, group in groupby(rows, key=lambda row: row.sample)]
    return Group(*(Padding(shown, (0, 0, 1, 0)) for shown in tables), Text(LEGEND, style="dim"))


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    title = f"{first.sample}: {first.nbytes / 2**20:.1f} MiB {first.dtype}, memcpy {first.memcpy_gb_per_s:.1f} GB/s"
    shown = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    shown.add_column("step", justify="right")
    shown.add_column("codec", no_wrap=True)
    for name in ("ratio", "bits", "encode", "decode", "error", "signs", "zeros"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            "exact" if row.step is None else f"{row.step:g}",
            row.codec,
            f"{row.ratio:.1f}x",
            f"{row.bits_per_value:.2f}",
            f"{row.encode_speed:.2f}",
            f"{row.decode_speed:.2f}",
            f"{row.worst_error:.3f}",
            _share(row.signs_kept),
            _share(row.zeros_kept),
        )
    return shown


def _share(share: float | None) -> str:
    """Return a percentage; 100 % only where nothing at all was lost."""
    if share is None:
        return "-"
    return "100 %" if share == 1.0 else f"{min(share, 0.9999):.2%}".replace("%", " %")


def write_json(path: Path, rows: list[Row], machine: dict[str, str]) -> None:
    """Write the machine and all rows."""
    payload = {"machine": machine, "rows": [_record(row) for row in rows]}
    files.write_json(path, payload)


def write_csv(path: Path, rows: list[Row]) -> None:
    """Write the rows with a header line."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)] + ["ratio"])
    writer.writeheader()
    writer.writerows(_record(row) for row in rows)
    files.write_whole(path, lambda file: file.write(text.getvalue().encode()))


def _record(row: Row) -> dict[str, object]:
    record = {**dataclasses.asdict(row), "ratio": row.ratio}
    if not math.isfinite(row.worst_error):  # a code that promised exact values and broke it; JSON has no infinity
        record["worst_error"] = None
    return record
