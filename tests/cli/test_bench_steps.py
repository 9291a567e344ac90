"""`slimgrad bench steps`, and the two scripts that are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from slimgrad.cli import app
from slimgrad.errors import ConfigError

ROOT = Path(__file__).parents[2]
TINY = ["bench", "steps", "--model", "tiny_nets:cnn", "--batch", "2", "--size", "32", "--threads", "1"]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


def test_time_is_shown_and_written(tmp_path):
    file = tmp_path / "steps.json"
    result = CliRunner().invoke(
        app, [*TINY, "--only", "time", "--rounds", "1", "--json", str(file)], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert "checkpoint" in result.output
    written = json.loads(file.read_text())
    assert written["machine"]["torch"] == torch.__version__
    (only,) = written["results"]
    assert only["setup"]["batch"] == 2
    assert only["peak"] == {}
    assert set(only["times"]["arms"]) == {"plain", "slim", "checkpoint"}
    assert set(only["huge_pages"]["arms"]) == {"plain", "slim"}


def test_wrong_options_are_errors():
    for extra in (["--only", "colour"], ["--bound", "loose"], ["--autocast", "int3"]):
        result = CliRunner().invoke(app, [*TINY, *extra])
        assert isinstance(result.exception, ConfigError), extra


@pytest.mark.parametrize("script", ["step.py", "peak.py", "overhead.py"])
def test_the_scripts_start(script):
    arguments = [sys.executable, str(ROOT / "bench" / script), "--help"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "120"}
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout
    assert "--json" in shown
