"""`slimgrad bench codecs`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slimgrad.cli import app

ROOT = Path(__file__).resolve().parents[2]


def test_codecs_shows_a_table_and_writes_both_files(tmp_path: Path) -> None:
    as_json, as_csv = tmp_path / "codecs.json", tmp_path / "codecs.csv"
    arguments = ["bench", "codecs", "--quick", "--json", str(as_json), "--csv", str(as_csv)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "relu(N(0,1)): 1.0 MiB float32" in result.output
    assert "batch-norm input 1" in result.output
    loaded = json.loads(as_json.read_text())
    assert {"raw", "nested"} <= {row["codec"] for row in loaded["rows"]}
    assert all(row["worst_error"] <= 1.0 for row in loaded["rows"])
    assert loaded["machine"]["processor"]
    assert len(as_csv.read_text().splitlines()) == 1 + len(loaded["rows"])


def test_only_and_step_choose_rows(tmp_path: Path) -> None:
    as_json = tmp_path / "codecs.json"
    arguments = ["bench", "codecs", "--quick", "--only", "nested", "--step", "2", "--json", str(as_json)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    rows = json.loads(as_json.read_text())["rows"]
    assert {(row["codec"], row["step"]) for row in rows} == {("nested", 2.0)}


@pytest.mark.parametrize("threads", ["0", "two"])
def test_threads_must_be_a_positive_number(threads: str) -> None:
    assert CliRunner().invoke(app, ["bench", "codecs", "--threads", threads]).exit_code == 2


def test_the_script_is_the_command() -> None:
    script = [sys.executable, str(ROOT / "bench" / "codecs.py"), "--help"]
    assert "--quick" in subprocess.run(script, capture_output=True, text=True, check=True).stdout
