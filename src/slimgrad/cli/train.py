"""`slimgrad train`: one training run, with progress, checkpoints and a page at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slimgrad.cli import options
from slimgrad.errors import ConfigError
from slimgrad.lab import pages
from slimgrad.lab.machine import ASK_FOR_HUGE_PAGES
from slimgrad.lab.parts import AUTO, fitted, resumed
from slimgrad.lab.recipe import DEFAULT_BOUND, SYSTEM, Recipe
from slimgrad.lab.run import Run
from slimgrad.lab.systems import SYSTEMS
from slimgrad.lab.tensorboard import Log
from slimgrad.lab.train import CHECKPOINT, Interrupted, Watcher, train
from slimgrad.lab.words import BOUND_GRAMMAR, POLICY_GRAMMAR
from slimgrad.planner.accumulation import Accumulation
from slimgrad.report.table import nbytes

POLICY = "compress"


def command(
    model: options.Model,
    data_set: options.Data = "fashion-mnist",
    bound: Annotated[str, typer.Option(help=f"plain, checkpoint, or {BOUND_GRAMMAR}.")] = DEFAULT_BOUND,
    policy: Annotated[str, typer.Option(help=f"{POLICY_GRAMMAR}.")] = POLICY,
    system: Annotated[str, typer.Option(help=f"A published system whole: {', '.join(SYSTEMS)}.")] = "",
    most_batch: Annotated[int, typer.Option(help="That COMET may grow the batch to; 0: 8 times it.", min=0)] = 0,
    epochs: options.Epochs = 1.0,
    steps: options.Steps = 0,
    batch: Annotated[str, typer.Option(help="Examples per step; 0: 128 images or 32 texts; auto, auto:64.")] = "0",
    memory: Annotated[str, typer.Option(help="In which a batch that is auto runs, in parts: 4GiB, 80%.")] = AUTO,
    size: options.Size = None,
    lr: options.Rate = 0.0,
    optimizer: Annotated[str, typer.Option(help="sgd or adamw; empty: that of the model.")] = "",
    settings: options.Settings = None,
    seed: options.Seed = 0,
    test_every: options.TestEvery = 0,
    audits: options.Audits = 10,
    threads: options.Threads = 0,
    channels_last: options.ChannelsLast = False,
    out: Annotated[Path | None, typer.Option(help="Folder of checkpoint, result and page.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, to the bit.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Log to this folder for TensorBoard.")] = None,
) -> None:
    """Train MODEL with its activations compressed; Ctrl-C saves, --resume goes on."""
    for name, value in ASK_FOR_HUGE_PAGES.items():
        os.environ.setdefault(name, value)  # as in every process that `slimgrad compare` starts
    is_fitted, n_examples = batch_of(batch)
    _refuse_idle(bound, policy, system, most_batch, None if is_fitted else memory)
    recipe = Recipe(
        model, data_set, policy=policy, options=options.settings_of(settings), size=size, seed=seed, epochs=epochs,
        steps=steps, batch=n_examples, lr=lr, optimizer=optimizer, test_every=test_every, audits=audits,
        threads=threads, channels_last=channels_last, most_batch=most_batch,
    ).for_arm(f"{SYSTEM}{system}" if system else bound)  # fmt: skip
    folder = out or options.folder_of("train", model, data_set, f"seed{seed}")
    console = Console()
    if is_fitted:
        recipe = resumed(recipe, folder / CHECKPOINT) if resume else _in_parts(recipe, memory, console)
    log = None if tensorboard is None else Log(tensorboard)
    with Shown(console, log) as watcher:
        try:
            result = train(recipe, folder, resume, watcher)
        except Interrupted as interrupted:
            console.print(escape(str(interrupted)))
            raise typer.Exit(128 + interrupted.number) from None
    pages.write(folder / options.PAGE, [result])
    console.print(summary(result))
    console.print(f"page: {escape(str(folder / options.PAGE))}")


def batch_of(word: str) -> tuple[bool, int]:
    """Return whether parts of the batch are to be fitted, and the examples per step of "64", "auto" or "auto:64"."""
    kind, _, number = word.partition(":")
    digits = (number or "0") if kind == AUTO else word
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"expected --batch 64, auto, or auto:64, got {word!r}")
    return kind == AUTO, int(digits)


def _refuse_idle(bound: str, policy: str, system: str, most_batch: int, memory: str | None) -> None:
    """Refuse options that would do nothing: who gives one expects something of it."""
    is_own = bound in ("plain", "checkpoint")
    idle = {
        "--bound, since a system has its own; leave out --system or --bound": system and bound != DEFAULT_BOUND,
        "--policy, since a system has its own; leave out --system or --policy": system and policy != POLICY,
        f"--policy, since --bound {bound} compresses nothing": is_own and not system and policy != POLICY,
        "--most-batch without --system comet": most_batch and system != "comet",
        "--memory without --batch auto": memory not in (None, AUTO),
    }
    for words, is_given in idle.items():
        if is_given:
            raise ConfigError(f"expected options that do something, got {words}")


def _in_parts(recipe: Recipe, memory: str, console: Console) -> Recipe:
    recipe, fit = fitted(recipe, memory)
    console.print(fit.log())
    if recipe.part:
        sizes = Accumulation(recipe.batch, recipe.part).sizes
        console.print(f"a batch of {recipe.batch} in {len(sizes)} parts of at most {sizes[0]}; gradients are added up")
    return recipe


def summary(result: dict[str, Any]) -> str:
    """Return what came out, in two lines."""
    final = result["final"]
    words = [f"test loss {final['test_loss']:.4f}, accuracy {final['test_accuracy']:.2%}"]
    words += [f"{final['seconds_per_step']:.3f} s per step, {final['examples_per_second']:.0f} examples per second"]
    words += [f"peak beyond static {nbytes(final['peak_live'])}"]
    if final["saved_ratio"] is not None:
        words.append(f"saved activations {final['saved_ratio']:.1f}x smaller")
    if final["noise"] is not None:
        words.append(f"gradient noise {final['noise']:.4f}")
    return "; ".join(words)


class Shown(Watcher):
    """A bar with loss, accuracy, ratio and memory, and a line for every test."""

    def __init__(self, console: Console, log: Log | None) -> None:
        self._console, self._log = console, log
        self._run: Run | None = None
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
        self._progress = Progress(TextColumn("{task.description}"), *columns, console=console)
        self._task = self._progress.add_task("training", total=None, now="")

    def __enter__(self) -> Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._log is not None:
            if self._run is not None:
                self._log.write(self._run)  # the last test and audit come after the last step
            self._log.close()

    def began(self, run: Run) -> None:
        self._progress.update(self._task, total=run.recipe.steps, completed=run.done)
        self._console.print(
            f"{escape(str(run.recipe))}: {run.recipe.steps} steps of {run.recipe.batch}, from step {run.done}"
        )
        if run.system is not None:
            self._console.print(f"[dim]{run.system.note}[/]")
        if run.n_grown > 1:
            after, batch = run.system and run.system.warm_up, run.n_grown * run.recipe.batch
            self._console.print(f"batches of {batch} after step {after and after(run.recipe.steps)}")
        if self._log is not None:
            self._run = run
            self._log.began(run)

    def stepped(self, run: Run) -> None:
        self._progress.update(self._task, completed=run.done, now=self._now(run))
        if self._log is not None:
            self._log.write(run)

    def _now(self, run: Run) -> str:
        history = run.history
        words = [f"loss {history.loss:.3f} acc {history.accuracy:.1%}"]
        if history.saved_ratio is not None:
            words.append(f"ratio {history.saved_ratio:.1f}x")
        return " ".join([*words, f"peak +{nbytes(run.peak_resident())}"])

    def tested(self, run: Run) -> None:
        last = run.history.test[-1]
        self._console.print(f"step {last['step']}: test loss {last['loss']:.4f}, accuracy {last['accuracy']:.2%}")

    def warned(self, text: str) -> None:
        self._console.print(f"[yellow]warning:[/] {escape(text)}")
