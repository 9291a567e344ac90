"""`slimgrad train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slimgrad.cli import app
from slimgrad.errors import ConfigError
from slimgrad.lab import machine, parts
from slimgrad.lab import train as train_module
from slimgrad.planner.fit_batch import FittedBatch
from slimgrad.planner.meters import Live

TINY = ["train", "tiny_nets:cnn", "--data", "random", "--size", "16", "--steps", "3", "--batch", "4", "--threads", "1"]


@pytest.fixture(autouse=True)
def _environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.ASK_FOR_HUGE_PAGES:
        monkeypatch.setenv(name, "0")  # so that the command's own choice does not outlive the test


def test_it_trains_and_leaves_result_checkpoint_and_page(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*TINY, "--audits", "1", "--out", str(tmp_path)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "result.json", "page.html"}
    final = json.loads((tmp_path / "result.json").read_text())["final"]
    assert f"saved activations {final['saved_ratio']:.1f}x" in " ".join(done.output.split())
    assert "step 3: test loss" in done.output


def test_the_last_test_and_audit_are_logged_too(tmp_path: Path, monkeypatch) -> None:
    written: dict[str, int] = {}
    noted = lambda self, run: written.update({k: len(v) for k, v in run.history.to_dict().items()})  # noqa: E731
    log = type("Log", (), {"__init__": lambda *_: None, "began": noted, "write": noted, "close": lambda self: None})
    monkeypatch.setattr("slimgrad.cli.train.Log", log)
    done = CliRunner().invoke(app, [*TINY, "--audits", "1", "--tensorboard", "logs", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    history = json.loads((tmp_path / "result.json").read_text())["history"]
    assert written == {kind: len(points) for kind, points in history.items()}
    assert written["test"] and written["noise"]


def test_a_folder_whose_name_looks_like_markup_is_one_like_others(tmp_path: Path) -> None:
    folder = tmp_path / "o[/b]"
    done = CliRunner().invoke(app, [*TINY, "--bound", "plain", "--out", str(folder)], env={"COLUMNS": "260"})
    assert done.exit_code == 0, done.output
    assert f"page: {folder / 'page.html'}" in done.output
    assert (folder / "page.html").exists()


def test_an_interrupted_run_ends_with_a_status_of_its_own_and_is_resumed(tmp_path: Path, monkeypatch) -> None:
    real = train_module._loop
    monkeypatch.setattr(train_module, "_loop", lambda *parts: real(*parts[:4], 2))
    done = CliRunner().invoke(app, [*TINY, "--out", str(tmp_path)])
    assert done.exit_code == 130
    assert "--resume" in done.output
    monkeypatch.setattr(train_module, "_loop", real)
    done = CliRunner().invoke(app, [*TINY, "--out", str(tmp_path), "--resume"], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "from step 2" in done.output


def test_a_published_system_trains_and_says_what_is_not_as_in_its_paper(tmp_path: Path) -> None:
    arguments = [*TINY, "--system", "freelunch", "--channels-last", "--audits", "0", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "host memory is where tensors of a CPU are" in " ".join(done.output.split())
    recipe = json.loads((tmp_path / "result.json").read_text())["recipe"]
    assert (recipe["system"], recipe["channels_last"]) == ("freelunch", True)


def test_a_batch_that_does_not_fit_is_cut_into_parts(tmp_path: Path, monkeypatch) -> None:
    def two_fit(step, budget, *, ceiling):
        assert (budget, ceiling) == ("4GiB", 5)
        batch = FittedBatch(2)
        batch.tries, batch.budget, batch.limit, batch.meter = (), 4 << 30, 4 << 30, Live()
        return batch

    monkeypatch.setattr(parts, "fit_batch", two_fit)
    words = [*TINY, "--batch", "auto:5", "--memory", "4GiB", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "largest batch in 4,096 MiB" in done.output
    assert "a batch of 5 in 3 parts of at most 2" in done.output
    recipe = json.loads((tmp_path / "result.json").read_text())["recipe"]
    assert (recipe["batch"], recipe["part"]) == (5, 2)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--bound", "tight"], "noise:SHARE"),
        (["--policy", "squash"], "compress:CODEC"),
        (["--system", "magic"], "comet, acgc, freelunch, cdma"),
        (["--data", "imagenet"], "fashion-mnist"),
        (["--set", "width"], "--set width=0.25"),
        (["--batch", "some"], "auto:64"),
        (["--batch", "²"], "auto:64"),
        (["--resume"], "begin without --resume"),
        (["--system", "acgc", "--bound", "exact"], "leave out --system or --bound"),
        (["--system", "acgc", "--policy", "recompute"], "leave out --system or --policy"),
        (["--bound", "plain", "--policy", "recompute"], "--policy, since --bound plain compresses nothing"),
        (["--most-batch", "64"], "--most-batch without --system comet"),
        (["--memory", "1GiB"], "--memory without --batch auto"),
    ],
)
def test_what_cannot_work_says_what_to_type(extra: list[str], words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*TINY, *extra, "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)
