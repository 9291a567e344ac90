"""One training step in three ways: plain, slim, and checkpointed per block. steps.py times them, peak.py weighs them.

    material = Material(Setup(model="resnet18", batch=4, size=64))
    step = Step(material, "slim")
    step()                                    forward, backward and one step of the optimiser

The arms of one Material share parameters, gradients, optimiser state and inputs, and differ in nothing else: each has a
twin of the model whose modules are its own and whose parameters are the same tensors.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab import models
from slimgrad.lab.words import bound_of

ARMS = ("plain", "slim", "checkpoint")
POLICIES = {  # further arms: sessions with other policies
    "swap": slimgrad.Swap("disk"),
    "swap, uncoded": slimgrad.Swap("disk", compress=False),
    "recompute": slimgrad.Recompute(),
    "blocks": slimgrad.Recompute(blocks="auto"),
}
HYBRID = "hybrid:"  # before a budget in bytes of live tensors
BATCHES = {"resnet50": 16, "vgg16": 8, "vgg16_bn": 8, "alexnet": 64, "resnet18": 32, "unet2d": 4, "gpt": 4}
LOW_PRECISION = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Setup:
    """What is trained, and how; plain words and numbers, so that another process can be told."""

    model: str = "resnet50"
    batch: int = 0  # 0: that of BATCHES, else 8
    size: int | None = None  # side of the image or length of the text; None: the model's own
    bound: str = "relative:0.5"
    autocast: str = ""  # "", "bfloat16" or "float16"
    threads: int = 0  # 0: torch's choice
    channels_last: bool = False

    def filled(self) -> Setup:
        """Return the setup with its defaults written out."""
        return replace(self, batch=self.batch or BATCHES.get(self.model, 8))

    def __str__(self) -> str:
        size = self.size or "x".join(str(side) for side in models.input_shape(self.model)[-2:])
        words = [f"{self.model}, batch {self.batch}, size {size}, {self.bound}"]
        words += [self.autocast or "float32", *(["channels_last"] if self.channels_last else [])]
        return ", ".join(words)


class Material:
    """What all arms share: the parameters with their gradients and optimiser state, one batch, the criterion."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup = setup.filled()
        if setup.autocast not in ("", *LOW_PRECISION):
            raise ConfigError(f"expected autocast {' or '.join(map(repr, LOW_PRECISION))}, got {setup.autocast!r}")
        self.bound = bound_of(setup.bound)
        if setup.threads:
            torch.set_num_threads(setup.threads)
        torch.manual_seed(0)
        self.model = models.build(setup.model)
        self.inputs, self.target = models.example(setup.model, setup.batch, setup.size)
        if setup.channels_last and self.inputs.dim() == 4:
            self.model = self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # makes its state, so that all that stays is there before the first step

    def static(self) -> list[torch.Tensor]:
        """Return the tensors that are there before a step and after it."""
        state = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*self.model.parameters(), *self.model.buffers(), *grads, *state, self.inputs, self.target]

    def twin(self) -> nn.Module:
        """Return a copy of the model on the same parameters and buffers."""
        shared = [*self.model.parameters(), *self.model.buffers()]
        return copy.deepcopy(self.model, {id(tensor): tensor for tensor in shared})


class Step:
    """A training step of one arm. `session` is there in arms that have a policy."""

    def __init__(self, material: Material, arm: str) -> None:
        if arm not in (*ARMS, *POLICIES) and not arm.startswith(HYBRID):
            raise ConfigError(f"expected one of the arms {', '.join((*ARMS, *POLICIES))}, got {arm!r}")
        self.material = material
        self.model = material.twin()
        self.criterion = models.criterion(material.setup.model)
        self.session = None
        policy = policy_of(arm)
        if policy is not None:
            self.session = slimgrad.attach(self.model, self.criterion, bound=material.bound, policy=policy)
        if arm == "checkpoint":
            checkpoint_segments(self.model)

    def __call__(self) -> None:
        precision = LOW_PRECISION.get(self.material.setup.autocast)
        cast = torch.autocast("cpu", precision) if precision else contextlib.nullcontext()
        self.material.optimizer.zero_grad(
            set_to_none=False
        )  # what stays, stays where it is: nothing is added to a peak
        with cast:
            loss = self.criterion(self.model(self.material.inputs), self.material.target)
        loss.backward()
        self.material.optimizer.step()


def policy_of(arm: str) -> slimgrad.Compress | slimgrad.Swap | slimgrad.Recompute | slimgrad.Hybrid | None:
    """Return the policy of an arm's session; None where there is none."""
    if arm.startswith(HYBRID):
        return slimgrad.Hybrid(int(arm[len(HYBRID) :]), counts="live")
    return slimgrad.Compress() if arm == "slim" else POLICIES.get(arm)


def checkpoint_segments(model: nn.Module) -> None:
    """Make every segment of the model recompute itself in backward; without segments, its children."""
    segments = model.segments() if hasattr(model, "segments") else list(model.children())  # pyright: ignore
    for segment in segments:
        segment.forward = functools.partial(checkpoint, segment.forward, use_reentrant=False)


def in_fresh_process(module: str, setup: Setup, *words: str, **environment: str) -> str:
    """Run `python -m module`, tell it the setup, and return what it prints."""
    with fresh_process(module, setup, *words, **environment) as process:
        printed, complaint = process.communicate()
    if process.returncode:
        raise ConfigError(f"expected {module} to finish in a process of its own, got:\n{complaint.strip()[-2000:]}")
    return printed


def fresh_process(module: str, setup: Setup, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Begin `python -m module`, tell it the setup, and return the process."""
    source = str(Path(slimgrad.__file__).parents[1])
    path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH", "")) if part)
    options = [f"{key}={value}" for key, value in asdict(setup).items() if value not in ("", None)]
    return subprocess.Popen(
        [sys.executable, "-m", module, *words, *options],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def setup_of(options: list[str]) -> Setup:
    """Return the setup that `in_fresh_process` wrote as key=value words."""
    words = dict(option.split("=", 1) for option in options)
    kinds = {"batch": int, "size": int, "threads": int, "channels_last": "True".__eq__}
    return Setup(**{key: kinds.get(key, str)(value) for key, value in words.items()})  # pyright: ignore
