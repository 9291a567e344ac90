"""Many runs, each in a process of its own, one small JSON file for each that has finished.

    results = run_all({"plain-seed0": recipe, ...}, results=Path("results"), work=Path("out/work"), jobs=2)

A run whose file is there, with the same recipe, is not repeated; one that was interrupted goes on from its checkpoint
in the work folder. So a stop at any moment loses at most a minute, and the table of results grows over time.

All processes alike ask for huge pages, unless the environment has its own word on it: the resident set then follows the
bytes that are live more closely, and plain training is faster too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import slimgrad
from slimgrad.errors import ConfigError, SlimgradError
from slimgrad.files import make_folder, write_json
from slimgrad.lab.data import Source
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES
from slimgrad.lab.recipe import Recipe, read_result
from slimgrad.lab.train import RESULT

POLL = 0.1  # seconds
PATIENCE = 60.0  # seconds that a run has to save itself when it is told to end
ERRORS = "errors.txt"

Tell = Callable[[str, str], None]  # name of the run, and what happened: "started", "finished", "kept", "failed"


class RunsFailed(ConfigError):
    """Some runs did not end well; `results` are those of the others, by name."""

    def __init__(self, reasons: Iterable[str], results: Mapping[str, dict[str, Any]]) -> None:
        super().__init__("\n".join(reasons))
        self.results = results


def finished(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Return the result in a file; None where there is none, ConfigError where it is not that of the filled recipe."""
    if not path.exists():
        return None
    result = read_result(path)
    difference = recipe.difference_to(result["recipe"])
    if difference:
        raise ConfigError(
            f"expected the result of {recipe}, not {path}, which {difference}; remove it or use another folder"
        )
    return result


def _all_filled(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Return the recipes with their defaults written out; data that several of them have is loaded once."""
    sources: dict[tuple[str, str, int | None], Source] = {}
    filled: dict[str, Recipe] = {}
    for name, recipe in recipes.items():
        key = recipe.model, recipe.data, recipe.size
        if key not in sources:
            sources[key] = recipe.source()
        filled[name] = recipe.filled(sources[key])
    return filled


def run_all(
    recipes: Mapping[str, Recipe], results: Path, work: Path, jobs: int = 1, tell: Tell = lambda name, what: None
) -> dict[str, dict[str, Any]]:
    """Return the result of every run by name, running those that are not there yet, `jobs` at a time.

    One that fails does not keep the others from their end; RunsFailed then says which did and why.
    """
    found: dict[str, dict[str, Any]] = {}
    reasons: list[str] = []
    waiting: list[str] = []
    recipes = _all_filled(recipes)  # what cannot work is said before the first run
    for name, recipe in recipes.items():
        result = finished(results / f"{name}.json", recipe)
        if result is None:
            waiting.append(name)
        else:
            found[name] = result
            tell(name, "kept")
    with _processes() as running:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = _start(recipes[name], work / name)
                tell(name, "started")
            time.sleep(POLL)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                reason = _why_failed(running.pop(name), work / name)
                if reason:
                    reasons.append(reason)
                else:
                    found[name] = _collect(work / name, results / f"{name}.json")
                tell(name, "failed" if reason else "finished")
    found = {name: found[name] for name in recipes if name in found}
    if reasons:
        raise RunsFailed(reasons, found)
    return found


@contextmanager
def _processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Yield the running processes; whatever ends the block, SIGTERM too, ends them and waits until they have saved."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    is_main = threading.current_thread() is threading.main_thread()  # elsewhere Python has no signals
    before = signal.signal(signal.SIGTERM, _end) if is_main else None
    try:
        yield running
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
        for process in running.values():
            process.terminate()
        for process in running.values():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _start(recipe: Recipe, folder: Path) -> subprocess.Popen[bytes]:
    make_folder(folder)
    write_json(folder / "recipe.json", recipe.to_dict())
    source = str(Path(slimgrad.__file__).parents[1])
    path = os.pathsep.join(part for part in (source, os.getcwd(), os.environ.get("PYTHONPATH", "")) if part)
    threads = {"OMP_NUM_THREADS": str(recipe.threads)} if recipe.threads else {}
    environment = {**ASK_FOR_HUGE_PAGES, **os.environ, "PYTHONPATH": path, **threads}
    command = [sys.executable, "-m", "slimgrad.lab.train", str(folder / "recipe.json"), str(folder), str(os.getpid())]
    with open(folder / ERRORS, "wb") as errors:
        return subprocess.Popen(command, env=environment, stderr=errors)


def _why_failed(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Return why a process that has ended has no result; SlimgradError where somebody has interrupted it."""
    code = process.returncode
    if code > 128 or -code in (signal.SIGINT, signal.SIGTERM):
        raise SlimgradError(f"interrupted: {folder.name}; the same command goes on from its checkpoint")
    if code == -signal.SIGKILL:
        advice = "systems do that where memory runs out: try a smaller --batch, or fewer --jobs"
        return f"expected the run {folder.name} to finish, got killed (SIGKILL); {advice}"
    if not code:
        return ""
    said = (folder / ERRORS).read_text(errors="replace").strip()[-2000:] if (folder / ERRORS).exists() else ""
    return f"expected the run {folder.name} to finish, got:\n{said or f'status {code}'}"


def _collect(folder: Path, path: Path) -> dict[str, Any]:
    """Put the result of a run where it belongs, and remove what it worked with."""
    result = read_result(folder / RESULT)
    write_json(path, result)
    shutil.rmtree(folder)
    return result
