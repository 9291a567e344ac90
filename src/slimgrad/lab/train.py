"""Trains a recipe to its end, keeping a checkpoint that an interruption cannot spoil.

    result = train(recipe, folder, resume=True)

The folder gets checkpoint.pt while the run lasts and result.json at its end. Ctrl-C and SIGTERM let the running step
end, save, and raise Interrupted; a kill loses what came after the last checkpoint and nothing else. Going on from a
checkpoint gives the weights of the uninterrupted run, bit for bit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from slimgrad.errors import ConfigError, SlimgradError, StorageFull
from slimgrad.files import held, make_folder, write_json
from slimgrad.lab import checkpoint, machine
from slimgrad.lab.recipe import Recipe, read_result
from slimgrad.lab.run import Run
from slimgrad.lab.timeline import timeline
from slimgrad.ledger import NOT_ACTIVATIONS
from slimgrad.planner.out_of_memory import is_out_of_memory

CHECKPOINT, RESULT = "checkpoint.pt", "result.json"
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
SECONDS_BETWEEN = 60.0  # checkpoints, beside those after every test


class Interrupted(SlimgradError):
    """A signal ended the run; its checkpoint is saved."""

    def __init__(self, number: int, path: Path, step: int) -> None:
        super().__init__(f"interrupted after step {step}; go on with --resume (the checkpoint is {path})")
        self.number = number


class NoMemory(SlimgradError):
    """A step did not fit."""

    def __init__(self, examples: int, error: BaseException) -> None:
        super().__init__(
            f"expected memory for a step of {examples} examples, got {type(error).__name__}: {error}; "
            "try --batch auto, which runs a batch in parts that fit, or a smaller --batch"
        )


class Watcher:
    """Is told what happens in a run; the command line shows it, others need not know."""

    def began(self, run: Run) -> None:
        """The run is ready, perhaps at a later step than the first."""

    def stepped(self, run: Run) -> None:
        """A step has ended."""

    def tested(self, run: Run) -> None:
        """The held-out examples were tested."""

    def warned(self, text: str) -> None:
        """Something went wrong that the run survives."""


class Stop:
    """Remembers the first SIGINT or SIGTERM; the second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python has no signals
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def train(
    recipe: Recipe, folder: Path, resume: bool = False, watcher: Watcher | None = None, until: int | None = None
) -> dict[str, Any]:
    """Train to the end and return what result.json holds; `until` interrupts after that step, as a signal would."""
    make_folder(folder)  # what cannot be written is said before the first step
    with held(folder):
        return _train(recipe, folder, resume, watcher or Watcher(), until)


def _train(recipe: Recipe, folder: Path, resume: bool, watcher: Watcher, until: int | None) -> dict[str, Any]:
    path = folder / CHECKPOINT
    if path.exists() and not resume:
        raise ConfigError(
            f"expected a folder without a run for a new one, got {folder} with {CHECKPOINT}; "
            "add --resume to go on with that run, or --out for another folder"
        )
    with Stop() as stop:
        run = Run(recipe.filled())
        try:
            if resume:
                _go_on(run, path)
            else:
                (folder / RESULT).unlink(missing_ok=True)  # of another run that was here
            watcher.began(run)
            if resume and (result := _result_before(run, folder / RESULT)):
                return result
            _loop(run, path, watcher, stop, until)
            result = _result(run)
        finally:
            run.close()
    write_json(folder / RESULT, result)
    return result


def _go_on(run: Run, path: Path) -> None:
    state = checkpoint.load_run(path)
    difference = run.recipe.difference_to(state["recipe"])
    if difference:
        raise ConfigError(f"expected to resume the run of {path}, which {difference}; use another --out")
    try:
        run.load_state_dict(state)
    except Exception as error:  # a state of the same recipe that does not fit was damaged, in whatever way
        raise checkpoint.damaged(path, error) from error


def _result_before(run: Run, path: Path) -> dict[str, Any] | None:
    """Return the result of a run that had ended, which knows more of it than what is left in this process."""
    if run.done < run.recipe.steps or not path.exists():
        return None
    result = read_result(path)
    return None if run.recipe.differs_from(result["recipe"]) else result


def _loop(run: Run, path: Path, watcher: Watcher, stop: Stop, until: int | None) -> None:
    saved_at = time.monotonic()
    audits = _audit_steps(run.recipe)
    while True:
        is_tested = _look(run, watcher, stop, audits)
        is_last = run.done >= run.recipe.steps
        if stop() or run.done == until:
            checkpoint.save(path, run.state_dict())
            raise Interrupted(stop.number or signal.SIGINT, path, run.done)
        if is_last or is_tested or time.monotonic() - saved_at > SECONDS_BETWEEN:
            _save(run, path, watcher, is_last)
            saved_at = time.monotonic()
        if is_last:
            return
        _step(run)
        watcher.stepped(run)


def _step(run: Run) -> None:
    """Train on; where the first step fails for a model that does not fit its data, or for want of memory, say so."""
    try:
        run.step()
    except (IndexError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise NoMemory(run.recipe.at_once, error) from error
        misfit = None if isinstance(error, SlimgradError) or run.has_stepped else run.misfit()
        if misfit is None:
            raise
        wish = f"inputs of shape {list(run.source.shape)} with {run.source.classes} classes ({run.recipe.data})"
        raise ConfigError(
            f"expected {run.recipe.model} to take {wish}, got {type(misfit).__name__}: {misfit}; SLIMGRAD_DEBUG=1 "
            "shows where"
        ) from error


def _look(run: Run, watcher: Watcher, stop: Stop, audits: set[int]) -> bool:
    """Audit and test where they are due and an interrupted run has not done so; return whether it was tested now."""
    if any(map(run.passes, audits)) and not run.history.was_audited(run.done):
        run.audit()
    is_on_time = run.before // run.recipe.test_every < run.done // run.recipe.test_every
    is_due = run.done and (is_on_time or run.done >= run.recipe.steps)
    if not is_due or run.history.was_tested(run.done) or stop():
        return False
    is_tested = run.test(stop)
    if is_tested:
        watcher.tested(run)
    return is_tested


def _audit_steps(recipe: Recipe) -> set[int]:
    if not recipe.audits or recipe.arm != "slim":
        return set()
    return {max(1, round((i + 1) * recipe.steps / recipe.audits)) for i in range(recipe.audits)}


def _save(run: Run, path: Path, watcher: Watcher, is_last: bool) -> None:
    try:
        checkpoint.save(path, run.state_dict())
    except StorageFull as error:
        if is_last:
            raise
        watcher.warned(str(error))


def _result(run: Run) -> dict[str, Any]:
    if not run.has_stepped:
        timeline(run)  # resumed at its end: there are no gradients, and a session's first step takes more than others
    history, last = run.history, run.history.test[-1]
    peak = run.peak_resident()
    final = {
        "test_loss": last["loss"],
        "test_accuracy": last["accuracy"],
        "train_loss": history.train[-1]["loss"],
        "seconds_per_step": run.seconds_per_step,
        "examples_per_second": run.recipe.batch / max(run.seconds_per_step, 1e-9),
        "saved_ratio": history.saved_ratio,
        "noise": sum(one["measured"] for one in history.noise) / len(history.noise) if history.noise else None,
        "peak_resident": peak,
    }
    layers = [] if run.session is None else _layers(run)
    memory = timeline(run)
    final |= {"peak_live": memory["peak"], "static": memory["static"]}
    return {
        "recipe": run.recipe.to_dict(),
        "machine": machine.describe(),
        "unit": run.source.unit,
        "final": final,
        "history": history.to_dict(),
        "layers": layers,
        "timeline": memory,
    }


def _layers(run: Run) -> list[dict[str, Any]]:
    """Return bytes per step by module and role, those of activations that are kept as they are too."""
    assert run.session is not None
    snapshot = run.session.report().snapshot
    steps = max(1, snapshot.n_steps)
    rows = [
        {"module": path, "role": role, "saved_in": coded.nbytes_in // steps, "saved_out": coded.nbytes_out // steps}
        for (path, role), coded in snapshot.total.coded.items()
    ]
    kept = {key: count.nbytes // steps for key, count in snapshot.total.kept.items() if key[2] not in NOT_ACTIVATIONS}
    rows += [
        {
            "module": path,
            "role": ", ".join(word for word in (role, reason) if word),
            "saved_in": nbytes,
            "saved_out": nbytes,
        }
        for (path, role, reason, _), nbytes in kept.items()
    ]
    return sorted(rows, key=lambda row: -row["saved_in"])


def _ends_with(parent: int) -> bool:
    """Get SIGTERM when the parent is gone, also when it was killed; return False where it is gone already."""
    if sys.platform != "linux":  # others have no such call
        return True
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def main(arguments: list[str]) -> int:
    """Run the recipe of a JSON file into a folder, from its checkpoint if it has one: for processes of their own.

    A third argument is the parent's process id: without that parent, nobody waits for the result.
    """
    if arguments[2:] and not _ends_with(int(arguments[2])):
        return 128 + signal.SIGTERM
    recipe = Recipe(**json.loads(Path(arguments[0]).read_text()))
    folder = Path(arguments[1])
    try:
        train(recipe, folder, resume=(folder / CHECKPOINT).exists())
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except SlimgradError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
