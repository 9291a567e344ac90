"""Runs in processes of their own, each finished once."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slimgrad import ConfigError
from slimgrad.errors import SlimgradError
from slimgrad.lab.fleet import _why_failed, finished, run_all
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.train import CHECKPOINT

ROOT = Path(__file__).parents[2]
TINY = Recipe("tiny_nets:cnn", "random", size=16, steps=1, batch=2, threads=1)


@pytest.fixture(autouse=True)
def _own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


def test_what_is_missing_runs_and_what_is_there_is_kept(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    recipes = {"plain": replace(TINY, arm="plain"), "slim": TINY}
    (tmp_path / "results").mkdir()
    done = {"recipe": recipes["plain"].filled().to_dict(), "final": {"test_accuracy": 0.5}}
    (tmp_path / "results" / "plain.json").write_text(json.dumps(done))
    results = run_all(recipes, tmp_path / "results", tmp_path / "work", tell=lambda *event: told.append(event))
    assert told == [("plain", "kept"), ("slim", "started"), ("slim", "finished")]
    assert list(results) == ["plain", "slim"]
    assert results["plain"]["final"] == {"test_accuracy": 0.5}
    assert results["slim"]["recipe"]["arm"] == "slim"
    assert list((tmp_path / "work").iterdir()) == []
    assert finished(tmp_path / "results" / "slim.json", TINY.filled()) == results["slim"]


def test_a_result_of_another_recipe_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    filled = TINY.filled()
    assert finished(path, filled) is None
    path.write_text(json.dumps({"recipe": filled.to_dict()}))
    with pytest.raises(ConfigError, match=r"had seed 0, got seed 4; remove it or use another folder"):
        finished(path, replace(filled, seed=4))


def test_a_result_is_not_taken_for_one_whose_recipe_leaves_more_open(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    done = replace(TINY, lr=0.001, arm="plain").filled()
    (tmp_path / "results" / "plain.json").write_text(json.dumps({"recipe": done.to_dict()}))
    asked = replace(TINY, steps=0, arm="plain")
    with pytest.raises(ConfigError, match=r"had steps 1, lr 0\.001, .*got steps \d+, lr 0\.1"):
        run_all({"plain": asked}, tmp_path / "results", tmp_path / "work")


@pytest.mark.skipif(not ASK_FOR_HUGE_PAGES, reason="only Linux has them")
def test_every_run_asks_for_huge_pages_unless_told_otherwise(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    (result,) = run_all({"a": replace(TINY, arm="plain")}, tmp_path / "one", tmp_path / "work").values()
    assert result["machine"]["huge pages"] == "asked for"
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    (result,) = run_all({"a": replace(TINY, arm="plain")}, tmp_path / "two", tmp_path / "work").values()
    assert result["machine"]["huge pages"] == "not asked for"


def test_a_run_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the run a to finish, got:\n.*options"):
        run_all({"a": replace(TINY, options={"colour": 3})}, tmp_path / "results", tmp_path / "work")


def test_a_run_that_the_system_kills_is_not_said_to_be_interrupted(tmp_path: Path) -> None:
    killed = SimpleNamespace(returncode=-signal.SIGKILL)
    assert "killed (SIGKILL); systems do that where memory runs out" in _why_failed(killed, tmp_path / "a")
    with pytest.raises(SlimgradError, match="interrupted: a; the same command goes on"):
        _why_failed(SimpleNamespace(returncode=-signal.SIGTERM), tmp_path / "a")
    assert "got:\nstatus 3" in _why_failed(SimpleNamespace(returncode=3), tmp_path / "a")


SCRIPT = """
import sys
from pathlib import Path
from slimgrad.lab.fleet import run_all
from slimgrad.lab.recipe import Recipe
recipe = Recipe("tiny_nets:cnn", "random", size=16, steps=10**6, batch=2, test_every=2, threads=1)
run_all({"endless": recipe}, Path(sys.argv[1]) / "results", Path(sys.argv[1]) / "work")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fleet_that_ends_ends_its_runs_which_save_first(number: int, tmp_path: Path) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent was killed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment)
    saved = tmp_path / "work" / "endless" / CHECKPOINT
    deadline = time.monotonic() + 120
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == (128 + number if number == signal.SIGTERM else -number)
    time.sleep(0.0 if number == signal.SIGTERM else 2.0)  # a killed one cannot wait for its runs
    last = saved.stat().st_mtime_ns
    time.sleep(0.5)
    assert saved.stat().st_mtime_ns == last, "the run goes on although nobody waits for it"
