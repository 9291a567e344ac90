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


def test_an_arm_that_fails_leaves_the_table_of_the_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    extra = ["--threads", "1", "--seeds", "1", "--arms", "system:cdma,plain", "--policy", "compress"]
    (tmp_path / "work" / "system_cdma-seed0" / "checkpoint.pt").parent.mkdir(parents=True)
    (tmp_path / "work" / "system_cdma-seed0" / "checkpoint.pt").write_bytes(b"spoilt")
    done = CliRunner().invoke(app, [*TINY, *extra, "--out", str(tmp_path)], env={"COLUMNS": "160"})
    assert isinstance(done.exception, ConfigError) and "system_cdma-seed0 to finish" in str(done.exception)
    assert "system_cdma-seed0: failed" in done.output and "plain-seed0: finished" in done.output
    assert "page:" in done.output and (tmp_path / "page.html").exists()


def test_what_cannot_work_is_said_before_anything_runs(tmp_path: Path) -> None:
    for extra in (["--arms", "plain,fast"], ["--bound", "plain"], ["--data", "imagenet"]):
        done = CliRunner().invoke(app, [*TINY, *extra, "--out", str(tmp_path)])
        assert isinstance(done.exception, ConfigError), extra
    assert list(tmp_path.iterdir()) == []
