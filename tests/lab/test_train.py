"""Training that can be interrupted anywhere: run, checkpoint, loop, memory over a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slimgrad import ConfigError, StorageFull, files
from slimgrad.lab import checkpoint
from slimgrad.lab import train as train_module
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run
from slimgrad.lab.timeline import timeline
from slimgrad.lab.train import CHECKPOINT, RESULT, Interrupted, NoMemory, Watcher, train

ROOT = Path(__file__).parents[2]
STEPS = 11  # bounds adapt after steps 1, 2, 5 and 10
TINY = Recipe("tiny_nets:cnn", "random", size=16, steps=STEPS, batch=4, test_every=4, audits=2, threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(TINY, folder)
    return folder


def same(a: object, b: object) -> bool:
    """Compare checkpoints to the bit; times and memory are not part of what is trained."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        keys = a.keys() - {"seconds", "peak", "steps"}
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in keys)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_a_run_interrupted_at_any_step_ends_with_the_same_bits(step: int, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=f"after step {step}; go on with --resume"):
        train(TINY, tmp_path, until=step)
    torch.manual_seed(99)
    train(TINY, tmp_path, resume=True)
    resumed, expected = checkpoint.load(tmp_path / CHECKPOINT), checkpoint.load(whole / CHECKPOINT)
    assert expected["session"]["bounds"], "the bound adapts, so that there is something to lose"
    assert same(resumed, expected)
    rows = [json.loads((folder / RESULT).read_text())["layers"] for folder in (tmp_path, whole)]
    assert {row["module"] for row in rows[0]} == {row["module"] for row in rows[1]}


def test_bits_do_depend_on_what_a_checkpoint_holds(whole: Path, tmp_path: Path) -> None:
    """The comparison can fail: without the state of the bound, the weights come out different."""
    with pytest.raises(Interrupted):
        train(TINY, tmp_path, until=6)
    state = checkpoint.load(tmp_path / CHECKPOINT)
    for bound in state["session"]["bounds"].values():
        for site in bound["sites"].values():
            site["rel"] = 0.01
    checkpoint.save(tmp_path / CHECKPOINT, state)
    train(TINY, tmp_path, resume=True)
    assert not same(checkpoint.load(tmp_path / CHECKPOINT)["model"], checkpoint.load(whole / CHECKPOINT)["model"])


def test_the_result_says_what_was_trained_and_what_came_out(whole: Path) -> None:
    result = json.loads((whole / RESULT).read_text())
    assert result["recipe"]["steps"] == STEPS
    final = result["final"]
    assert final["saved_ratio"] > 2
    assert 0 < final["noise"] < 1
    assert [one["step"] for one in result["history"]["test"]] == [4, 8, STEPS]
    assert [one["step"] for one in result["history"]["noise"]] == [6, STEPS]
    saved_in, saved_out = (sum(row[part] for row in result["layers"]) for part in ("saved_in", "saved_out"))
    assert saved_in > 100_000
    assert saved_in / saved_out == pytest.approx(final["saved_ratio"], rel=0.01)
    assert max(result["timeline"]["samples"]) == final["peak_live"] > 0


def test_resuming_a_run_that_has_ended_changes_nothing(whole: Path) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    assert train(TINY, whole, resume=True) == json.loads(before[RESULT])
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_a_new_run_does_not_take_the_folder_of_another(whole: Path) -> None:
    before = (whole / CHECKPOINT).read_bytes()
    with pytest.raises(ConfigError, match=r"add --resume to go on with that run, or --out for another folder"):
        train(replace(TINY, steps=2), whole)
    assert (whole / CHECKPOINT).read_bytes() == before


def test_a_test_loss_that_is_not_finite_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a finite test loss, got (nan|inf) at step 1 .* smaller learning rate"):
        train(replace(TINY, steps=1, lr=1e30), tmp_path)


def test_a_model_that_does_not_fit_its_data_is_said(tmp_path: Path) -> None:
    recipe = replace(TINY, data="fashion-mnist", size=None)
    with pytest.raises(ConfigError, match=r"tiny_nets:cnn to take inputs of shape \[1, 32, 32\] .*got RuntimeError"):
        train(recipe, tmp_path)


def test_a_checkpoint_with_a_tensor_of_another_shape_is_named(whole: Path, tmp_path: Path) -> None:
    state = checkpoint.load(whole / CHECKPOINT)
    checkpoint.save(tmp_path / CHECKPOINT, {**state, "model": {"0.weight": torch.zeros(1)}})
    with pytest.raises(ConfigError, match=r"to be the checkpoint of a run, got RuntimeError"):
        train(TINY, tmp_path, resume=True)


def test_arms_with_one_seed_begin_alike_and_slim_holds_less(tmp_path: Path) -> None:
    recipe = replace(TINY, size=64, steps=2, audits=0, bound="relative:0.5")
    results = {arm: train(replace(recipe, arm=arm), tmp_path / arm) for arm in ("plain", "slim", "checkpoint")}
    losses = {arm: result["history"]["train"][0]["loss"] for arm, result in results.items()}
    assert losses["plain"] == losses["checkpoint"] == losses["slim"]
    peaks = {arm: result["final"]["peak_live"] for arm, result in results.items()}
    assert peaks["slim"] < 0.75 * peaks["plain"]
    assert peaks["checkpoint"] < peaks["plain"]
    assert results["plain"]["final"]["saved_ratio"] is None


def test_a_timeline_rises_in_forward_and_ends_near_the_floor() -> None:
    run = Run(replace(TINY, arm="plain", size=64).filled())
    run.step()
    memory = timeline(run)
    samples = memory["samples"]
    top = samples.index(max(samples))
    assert 0.2 < memory["forward"] < 0.8
    assert samples[0] < 0.1 * max(samples)
    assert samples[-1] < 0.3 * max(samples)
    assert 0.2 * len(samples) < top
    run.close()


def test_a_full_disk_keeps_the_last_good_checkpoint_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, warnings = [], []
    real = checkpoint.save

    def save(path, state):
        calls.append(state["done"])
        if len(calls) == 2:
            raise StorageFull("expected room")
        real(path, state)

    class Noted(Watcher):
        def warned(self, text: str) -> None:
            warnings.append((text, checkpoint.load(tmp_path / CHECKPOINT)["done"]))

    monkeypatch.setattr(train_module.checkpoint, "save", save)
    train(TINY, tmp_path, watcher=Noted())
    assert warnings == [("expected room", 4)]
    assert checkpoint.load(tmp_path / CHECKPOINT)["done"] == STEPS


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(TINY, tmp_path, until=1)
    with pytest.raises(ConfigError, match=r"which had seed 0, got seed 1; use another --out"):
        train(replace(TINY, seed=1), tmp_path, resume=True)


def test_a_folder_in_which_another_process_trains_is_refused(tmp_path: Path) -> None:
    with files.held(tmp_path), pytest.raises(ConfigError, match=r"in which one is training; wait .* another --out"):
        train(TINY, tmp_path)
    with pytest.raises(Interrupted):
        train(TINY, tmp_path, until=0)


def test_the_result_of_an_earlier_run_is_not_that_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / RESULT).write_text(json.dumps({"recipe": TINY.filled().to_dict(), "final": "earlier"}))
    with pytest.raises(Interrupted):
        train(TINY, tmp_path, until=1)
    assert not (tmp_path / RESULT).exists()


@pytest.mark.parametrize("arm", ["plain", "slim"])
def test_a_run_resumed_at_its_end_has_the_memory_of_one_that_was_not(arm: str, tmp_path: Path) -> None:
    recipe = replace(TINY, arm=arm, steps=2)
    finals = [train(recipe, tmp_path / "whole")["final"]]
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "parts", until=2)
    finals.append(train(recipe, tmp_path / "parts", resume=True)["final"])
    assert finals[0]["static"] == finals[1]["static"]
    assert finals[0]["peak_live"] == finals[1]["peak_live"]


def test_a_step_that_does_not_fit_says_what_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(run: Run) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: ...")

    monkeypatch.setattr(Run, "step", no_memory)
    with pytest.raises(NoMemory, match=r"memory for a step of 4 examples, .*--batch auto"):
        train(TINY, tmp_path)


def test_options_of_the_model_that_are_dropped_make_another_recipe(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(TINY, tmp_path, until=1)
    state = checkpoint.load(tmp_path / CHECKPOINT)
    state["recipe"]["options"] = {"drop": 0.5}  # as if it had begun with --set drop=0.5
    checkpoint.save(tmp_path / CHECKPOINT, state)
    with pytest.raises(ConfigError, match=r"which had options \{'drop': 0\.5\}, got options \{\}; use another --out"):
        train(TINY, tmp_path, resume=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_to_go_on_from(number: int, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(replace(TINY, steps=10**6, test_every=3).to_dict()))
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, "-m", "slimgrad.lab.train", str(recipe), str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    deadline = time.monotonic() + 120
    while not (tmp_path / CHECKPOINT).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert checkpoint.load(tmp_path / CHECKPOINT)["done"] >= 3
    assert not (tmp_path / RESULT).exists()
