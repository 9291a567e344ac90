"""`slimgrad compare`."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from slimgrad.cli import app
from slimgrad.errors import ConfigError

ROOT = Path(__file__).parents[2]
TINY = ["compare", "tiny_nets:cnn", "--data", "random", "--size", "16", "--steps", "2", "--batch", "2"]


def test_it_ends_with_the_table_and_the_page_and_repeats_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    arguments = [*TINY, "--threads", "1", "--seeds", "1", "--jobs", "2", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "noise:0.05" in done.output
    assert (tmp_path / "page.html").exists()
    again = CliRunner().invoke(app, [*arguments, "--arms", "plain, slim"], env={"COLUMNS": "160"})
    assert "plain-seed0: kept" in again.output
    assert "started" not in again.output


def test_what_cannot_work_is_said_before_anything_runs(tmp_path: Path) -> None:
    for extra in (["--arms", "plain,fast"], ["--bound", "plain"], ["--data", "imagenet"]):
        done = CliRunner().invoke(app, [*TINY, *extra, "--out", str(tmp_path)])
        assert isinstance(done.exception, ConfigError), extra
    assert list(tmp_path.iterdir()) == []
