"""The codec table in its three forms."""

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from slimgrad.lab.codec_bench import Row
from slimgrad.lab.codec_table import table, write_csv, write_json

EXACT = Row("noise", "float32", 4 << 20, "raw", None, 0.0, 4 << 20, 32.0, 0.9, 0.95, 10.25, 0.0, 1.0, None)
LOSSY = Row("noise", "float32", 4 << 20, "nested", 0.5, 0.25, 1 << 18, 2.0, 0.61, 0.82, 10.25, 0.998, 0.999999, 0.25)
OTHER = Row("flags", "bool", 1 << 20, "mask", None, 0.0, 1 << 17, 1.0, 1.5, 1.6, 10.0, 0.0, 1.0, 1.0)


def shown(rows: list[Row]) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table(rows))
    return [line.split() for line in capture.get().splitlines()]


def test_a_row_says_what_was_measured() -> None:
    lines = shown([EXACT, LOSSY])
    assert lines[0] == ["noise:", "4.0", "MiB", "float32,", "memcpy", "10.2", "GB/s"]
    assert lines[2] == ["exact", "raw", "1.0x", "32.00", "0.90", "0.95", "0.000", "100", "%", "-"]
    assert lines[3] == ["0.5", "nested", "16.0x", "2.00", "0.61", "0.82", "0.998", "99.99", "%", "25.00", "%"]


def test_a_share_just_below_one_is_not_shown_as_all() -> None:
    assert "99.99" in shown([LOSSY])[2]


def test_every_sample_has_its_own_table() -> None:
    titles = [line[0] for line in shown([EXACT, LOSSY, OTHER]) if line and line[0].endswith(":")]
    assert titles[:2] == ["noise:", "flags:"]


@pytest.mark.parametrize("folder", [".", "deeper/still"])
def test_json_and_csv_hold_the_same_numbers(tmp_path: Path, folder: str) -> None:
    as_json, as_csv = tmp_path / folder / "rows.json", tmp_path / folder / "rows.csv"
    write_json(as_json, [EXACT, LOSSY], {"processor": "one"})
    write_csv(as_csv, [EXACT, LOSSY])
    loaded = json.loads(as_json.read_text())
    assert loaded["machine"] == {"processor": "one"}
    with as_csv.open() as file:
        rows = list(csv.DictReader(file))
    for from_json, from_csv in zip(loaded["rows"], rows, strict=True):
        assert {key: "" if value is None else str(value) for key, value in from_json.items()} == from_csv
    assert loaded["rows"][1]["ratio"] == 16.0


def test_a_broken_promise_of_exact_values_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "rows.json", [dataclasses.replace(EXACT, worst_error=float("inf"))], {})
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][0]["worst_error"] is None
