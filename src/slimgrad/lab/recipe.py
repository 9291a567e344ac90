"""What is trained and how, in plain words and numbers: what a checkpoint, another process or a result file holds.

    Recipe("resnet18", "cifar10", steps=400).filled()

`filled()` writes out the defaults, so that a result says all that it depends on even when defaults change. The arm
"plain" trains as PyTorch does, "checkpoint" recomputes every block in backward, "slim" has a session of slimgrad.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slimgrad.errors import ConfigError
from slimgrad.lab import data, models, words
from slimgrad.lab.models.fitting import fitting
from slimgrad.lab.systems import system_of

NOT_COMPARED = ("epochs",)  # they are in the steps of a filled recipe
OF_SLIM = ("bound", "policy", "audits", "system", "most_batch")  # no other arm reads them
FIT = ("classes", "context", "in_channels", "features", "size")  # options that follow from the data
AT_LEAST = ("classes", "context")  # ... of which there may be more
NUMBERS = (
    "epochs", "steps", "batch", "lr", "test_every", "test_examples", "audits", "threads", "part", "most_batch",
)  # fmt: skip
MOST_SEED = 1 << 42  # data multiplies it by a million (data/base.py), and torch takes 64 bits
ARMS = ("plain", "slim", "checkpoint")
SYSTEM = "system:"  # before the name of a published system, where an arm is named
DEFAULT_BOUND = "noise:0.05"
SGD, ADAMW = "sgd", "adamw"
LEARNING = {  # by model: optimiser, peak learning rate, weight decay
    "gpt": (ADAMW, 1e-3, 0.1),
    "vit": (ADAMW, 1e-3, 0.05),
    "lstm": (ADAMW, 2e-3, 0.01),
    "alexnet": (SGD, 0.02, 5e-4),  # without norms, larger rates do not begin to learn
    "vgg16": (SGD, 0.02, 5e-4),
}
LEARNING_ELSE = (SGD, 0.1, 5e-4)
WARM_UP = 0.1  # of all steps: the rate rises in a line, then falls to zero as a cosine


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training run; what is None or 0 is written out by filled()."""

    model: str
    data: str
    arm: str = "slim"
    bound: str = DEFAULT_BOUND
    policy: str = "compress"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model, beyond those that fit it to the data
    size: int | None = None
    seed: int = 0
    epochs: float = 0.0
    steps: int = 0  # 0: from the epochs
    batch: int = 0
    optimizer: str = ""
    lr: float = 0.0
    weight_decay: float | None = None
    test_every: int = 0  # steps between tests; 0: ten in all
    test_examples: int = 0  # of those held out; 0: all
    audits: int = 0  # number of times that the gradient's error is measured
    threads: int = 0  # 0: torch's choice
    channels_last: bool = False  # the layout of images: often the faster one for convolutions on a CPU
    system: str = ""  # a published system whole, in the place of bound and policy
    part: int = 0  # of a batch that is run at once, where not all of it fits; gradients are added up. 0: all
    most_batch: int = 0  # that a system may grow the batch to; 0: its own limit

    def filled(self, source: data.Source | None = None) -> Recipe:
        """Return the recipe with its defaults written out, after a check that everything in it is known.

        `source` is its data where that is loaded already.
        """
        self._check()
        source = source or self.source()
        kind, lr, decay = LEARNING.get(self.model, LEARNING_ELSE)
        batch = self.batch or (32 if source.unit == "tokens" else 128)
        steps = self.steps or max(1, round((self.epochs or 1.0) * (source.n_train // batch)))
        return replace(
            self,
            options=self._fitting_options(source),
            batch=batch,
            steps=steps,
            optimizer=self.optimizer or kind,
            lr=self.lr or lr,
            weight_decay=decay if self.weight_decay is None else self.weight_decay,
            test_every=self.test_every or math.ceil(steps / 10),
        )

    def _fitting_options(self, source: data.Source) -> dict[str, Any]:
        """Return the options with those that fit the model to the data; what is given must fit it too."""
        fit = fitting(self.model, source.shape, source.classes)
        for name in (name for name in FIT if name in fit and name in self.options):
            given, needed = self.options[name], fit[name]
            is_enough = isinstance(given, int) and given >= needed if name in AT_LEAST else given == needed
            if not is_enough:
                least = " or more" if name in AT_LEAST else ""
                wish = f"{name}={needed}{least} of {self.model} on {self.data}"
                raise ConfigError(f"expected {wish}, got {given!r}; leave it out to have it fit")
        return {**fit, **self.options}

    def _check(self) -> None:
        models.maker(self.model)
        self._check_numbers()
        self._check_options()
        if self.arm not in ARMS:
            raise ConfigError(f"expected one of the arms {', '.join(ARMS)}, got {self.arm!r}")
        if self.system:
            system_of(self.system)
        elif self.arm == "slim":
            words.bound_of(self.bound)
            words.policy_of(self.policy)
        if self.optimizer not in ("", SGD, ADAMW):
            raise ConfigError(f"expected the optimizer {SGD} or {ADAMW}, got {self.optimizer!r}")

    def _check_numbers(self) -> None:
        for name in NUMBERS:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"expected a finite {name} of 0 or more, got {getattr(self, name)}")
        if abs(self.seed) >= MOST_SEED:
            raise ConfigError(f"expected a seed between -2^42 and 2^42, got {self.seed}")

    def _check_options(self) -> None:
        """Refuse what a model of the table would take and not mean."""
        if self.model not in models.names():
            return
        if models.is_per_place(self.model) and len(models.input_shape(self.model)) > 1 and self.data != "random":
            raise ConfigError(f"expected data with a target per pixel for {self.model}, got {self.data}; --data random")
        for name, value in self.options.items():
            if isinstance(value, int | float) and (value < 0 or (name == "width" and value == 0)):
                raise ConfigError(f"expected {name} above 0 for {self.model}, got --set {name}={value}")

    def for_arm(self, word: str) -> Recipe:
        """Return the recipe for "plain", "checkpoint", "slim" (with the bound it has), a bound, or "system:comet"."""
        if word in ARMS:
            return replace(self, arm=word)
        if word.startswith(SYSTEM):
            name = word[len(SYSTEM) :]
            system_of(name)
            return replace(self, arm="slim", bound="", policy="", system=name)
        words.bound_of(word)
        return replace(self, arm="slim", bound=word)

    @property
    def at_once(self) -> int:
        """Examples that go through the model together."""
        return self.part or self.batch

    @property
    def arm_word(self) -> str:
        """The word that for_arm() would need."""
        return arm_word(self.to_dict())

    def source(self) -> data.Source:
        """Return the data."""
        wanted = None
        if self.data == "random":  # only then does the model have to say what it takes
            wanted = data.Inputs(models.input_shape(self.model), models.is_per_place(self.model))
        return data.load(self.data, self.size, wanted)

    def build_model(self) -> nn.Module:
        """Return a new model from the global random state of torch."""
        model = models.build(self.model, **self.options)
        if self.channels_last:
            return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return model

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser; norms and biases do not decay."""
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        if self.optimizer == ADAMW:
            return torch.optim.AdamW(groups, lr=self.lr, betas=(0.9, 0.95))
        return torch.optim.SGD(groups, lr=self.lr, momentum=0.9, nesterov=True)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step as a share of the peak; steps count from 0."""
        rise = max(1, round(WARM_UP * self.steps))
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and words."""
        return {**asdict(self), "options": dict(self.options)}

    def differs_from(self, other: Mapping[str, Any]) -> list[str]:
        """Return the names of what is not the same in the to_dict() of another recipe; both have to be filled.

        A field that is newer than the other recipe had its default there.
        """
        known = {**{f.name: f.default for f in fields(self)}, **other}
        idle = OF_SLIM if self.arm == known["arm"] != "slim" else ()
        own, names = self.to_dict(), [f.name for f in fields(self) if f.name not in (*NOT_COMPARED, *idle)]
        return [name for name in names if own[name] != known[name]]

    def difference_to(self, other: Mapping[str, Any]) -> str:
        """Return what differs_from() found in words, "had seed 0, got seed 1"; nothing where both are the same."""
        own, different = self.to_dict(), self.differs_from(other)
        was, now = (", ".join(f"{name} {of.get(name)!r}" for name in different) for of in (other, own))
        return f"had {was}, got {now}" if different else ""

    def __str__(self) -> str:
        how = f"{self.bound}, {self.policy}" if self.arm == "slim" and not self.system else self.arm_word
        return f"{self.model} on {self.data}, {how}, seed {self.seed}"


def arm_word(recipe: Mapping[str, Any]) -> str:
    """Return the word that for_arm() needs for a recipe as plain numbers and words."""
    if recipe.get("system"):
        return f"{SYSTEM}{recipe['system']}"
    return recipe["bound"] if recipe["arm"] == "slim" else recipe["arm"]


def read_result(path: Path) -> dict[str, Any]:
    """Return the content of a result's file, which names its recipe; ConfigError where it is none."""
    try:
        content = json.loads(path.read_text())
        content["recipe"]["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"expected {path} to be the result of a run, got {type(error).__name__}: {error}; "
            "remove it, and the run is repeated"
        ) from error
    return content
