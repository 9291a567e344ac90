"""`slimgrad profile`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from slimgrad.cli import app


def test_it_shows_the_claims_and_writes_numbers_and_page(tmp_path: Path) -> None:
    words = ["profile", "tiny_nets:cnn", "--data", "random", "--size", "16", "--steps", "4", "--batch", "2"]
    done = CliRunner().invoke(app, [*words, "--threads", "1", "--out", str(tmp_path)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "pooling always raises density" in done.output
    assert "no pooling in this model" in done.output
    assert "relu result" in done.output
    assert len(json.loads((tmp_path / "profile.json").read_text())["course"]) == 5
    assert (tmp_path / "page.html").exists()
