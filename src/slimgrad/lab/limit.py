"""Training under a memory limit that kills: which batch plain PyTorch dies at, and which one slimgrad trains.

    found = compare(Setup("resnet50", batch=8), limit=1350 << 20)
    found.plain_dies.is_killed, found.slim_fit.batch, found.slim.losses == found.slim_unlimited.losses

Every training is a process of its own. The limit is a control group where one can be made (control_group.py), and then
`fit_batch` is told "auto" and has to find it; elsewhere a watchdog on the resident set kills, and `fit_batch` is told
the number. All processes, plain ones too, have huge pages for torch's allocator; a session then gives freed memory back
by itself.

Steps see another random batch each and start from the same seed, so a run under the limit must have the losses of the
same run without one, bit for bit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab import models
from slimgrad.lab.arms import Setup, fresh_process, setup_of
from slimgrad.lab.control_group import can_limit_memory, join, memory_group
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES
from slimgrad.lab.words import bound_of
from slimgrad.report.memory import resident_peak

ARMS = ("plain", "slim")
POLL = 0.005  # seconds between two looks of the watchdog


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one process ended, and what it told until then."""

    arm: str
    batch: int  # trained, or found
    is_killed: bool
    losses: list[float]  # one per step
    seconds: list[float]
    cpu_seconds: list[float]
    peak: int = 0  # resident set
    log: str = ""  # of fit_batch

    @property
    def examples_per_second(self) -> float:
        """By the fastest step: other work on the machine only adds."""
        return self.batch / min(self.seconds)

    @property
    def examples_per_cpu_second(self) -> float:
        return self.batch / min(self.cpu_seconds)


@dataclass(frozen=True, slots=True)
class Cage:
    """A limit on processes: a control group, or a watchdog."""

    limit: int
    group: Path | None

    @property
    def kind(self) -> str:
        return "watchdog on the resident set" if self.group is None else "control group"

    @property
    def budget(self) -> str:
        """What fit_batch is told."""
        return str(self.limit) if self.group is None else "auto"

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Hold the process to the limit."""
        if self.group is not None:
            join(self.group, process.pid)
        else:
            threading.Thread(target=_kill_beyond, args=(process, self.limit), daemon=True).start()


@contextlib.contextmanager
def caged(limit: int) -> Iterator[Cage]:
    """Yield a limit of so many bytes on everything that is run in it."""
    if can_limit_memory():
        with memory_group(limit) as group:
            yield Cage(limit, group)
    else:
        yield Cage(limit, None)


def _kill_beyond(process: subprocess.Popen[str], limit: int) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            if pages * 4096 > limit:
                process.kill()
        time.sleep(POLL)


def train(setup: Setup, arm: str, steps: int, cage: Cage | None = None) -> Outcome:
    """Return how training of the setup's batch went, under the limit or free."""
    return _run(setup, arm, "train", str(steps), cage)


def fit(setup: Setup, arm: str, cage: Cage) -> Outcome:
    """Return what fit_batch finds under the limit."""
    outcome = _run(setup, arm, "fit", cage.budget, cage)
    if outcome.is_killed:
        raise ConfigError(f"expected fit_batch to live under {cage.limit >> 20} MiB ({cage.kind}), got a killed one")
    return outcome


def _run(setup: Setup, arm: str, verb: str, word: str, cage: Cage | None) -> Outcome:
    with fresh_process(__name__, setup, verb, arm, word, **ASK_FOR_HUGE_PAGES) as process:
        if cage is not None:
            cage.watch(process)
        printed, complaint = process.communicate()
    if process.returncode not in (0, -9):
        raise ConfigError(f"expected training to end or to be killed, got:\n{complaint.strip()[-2000:]}")
    told = [json.loads(line) for line in printed.splitlines()]
    last = told[-1] if told else {}
    return Outcome(
        arm=arm,
        batch=last.get("batch", setup.batch),
        is_killed=process.returncode == -9,
        losses=[line["loss"] for line in told if "loss" in line],
        seconds=[line["seconds"] for line in told if "loss" in line],
        cpu_seconds=[line["cpu_seconds"] for line in told if "loss" in line],
        peak=last.get("peak", 0),
        log=last.get("log", ""),
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was compared at one limit."""

    kind: str
    plain_dies: Outcome  # at the setup's batch
    plain_fit: Outcome
    slim_fit: Outcome
    plain: Outcome  # trained under the limit, at the batch that fits
    slim: Outcome  # the same, at its own
    slim_unlimited: Outcome  # at slim's batch
    plain_unlimited: Outcome

    @property
    def gain(self) -> float:
        """Batch that slim trains over the one that plain dies at."""
        return self.slim.batch / self.plain_dies.batch


def compare(setup: Setup, limit: int, steps: int = 20, say: Callable[[str], object] = lambda _: None) -> Found:
    """Return both arms at this limit; the setup's batch is the one that plain should die at."""

    def told(name: str, outcome: Outcome) -> Outcome:
        end = "killed" if outcome.is_killed else "alive"
        say(outcome.log or f"{name}, batch {outcome.batch}: {end} after {len(outcome.losses)} steps")
        return outcome

    with caged(limit) as cage:
        say(f"limit {limit >> 20} MiB, {cage.kind}")
        dies = told("plain", train(setup, "plain", steps, cage))
        fits = [told(arm, fit(setup, arm, cage)) for arm in ARMS]
        runs = [
            told(arm, train(replace(setup, batch=one.batch), arm, steps, cage))
            for arm, one in zip(ARMS, fits, strict=True)
        ]
    large = replace(setup, batch=fits[1].batch)
    free = [told(f"{arm}, no limit", train(large, arm, steps)) for arm in reversed(ARMS)]
    return Found(cage.kind, dies, *fits, *runs, *free)


def trainer(setup: Setup, arm: str) -> Callable[[int, int], float]:
    """Return step(batch, number), which trains on a batch of its own and returns the loss."""
    if setup.threads:
        torch.set_num_threads(setup.threads)
    torch.manual_seed(0)
    model, criterion = models.build(setup.model), models.criterion(setup.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if arm == "slim":
        slimgrad.attach(model, criterion, bound=bound_of(setup.bound), optimizer=optimizer)

    def step(batch: int, number: int) -> float:
        x, y = models.example(setup.model, batch, setup.size, seed=number)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _train_here(setup: Setup, arm: str, steps: int) -> None:
    step = trainer(setup, arm)
    for number in range(steps):
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = step(setup.batch, number)
        times = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
        print(json.dumps({"loss": loss, **times, "batch": setup.batch, "peak": resident_peak()}), flush=True)


def _fit_here(setup: Setup, arm: str, budget: str) -> None:
    step = trainer(setup, arm)
    gc.collect()
    batch = slimgrad.fit_batch(lambda n: step(n, 0), budget, powers_of_two=True)  # COMET's rule
    print(json.dumps({"batch": int(batch), "log": batch.log(), "peak": resident_peak()}))


if __name__ == "__main__":
    _verb, _arm, _word = sys.argv[1:4]
    _setup = setup_of(sys.argv[4:])
    _train_here(_setup, _arm, int(_word)) if _verb == "train" else _fit_here(_setup, _arm, _word)
