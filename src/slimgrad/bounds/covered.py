"""What a published system covers: its bound for the tensors of some roles, and every other tensor exact.

COMET and AC-GC say how far off some kinds of tensors may be and nothing of the rest; what nothing is said of is kept
exactly. Roles are asked for by the words that users write: "conv", "linear", "norm".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slimgrad.bounds.base import Fixed, Reader
from slimgrad.bounds.fixed import Absolute, Exact, Relative
from slimgrad.codecs.base import Bound
from slimgrad.errors import ConfigError
from slimgrad.roles import Role

ROLES = {"conv": "conv input", "linear": "linear input", "norm": "batch norm input"}  # by word
LARGEST = 1e30  # of a bound: codes want a finite one, and none is coarser than two RMS of the data


@dataclass(frozen=True, slots=True)
class PerChannel(Fixed):
    """|restored - original| <= per_channel[c] in channel c; a code without bounds per channel keeps the smallest."""

    per_channel: tuple[float, ...]

    @property
    def needs_rms(self) -> bool:
        return False

    def eps(self, rms: float) -> float:
        return min(self.per_channel)

    def of(self, role: Role) -> PerChannel:
        return self


@dataclass(frozen=True, slots=True)
class Covered:
    """`bound` where the role is one of `words`, exact elsewhere."""

    bound: Exact | Absolute | Relative | PerChannel
    words: tuple[str, ...]

    def of(self, role: Role) -> Bound:
        return self.bound.of(role) if role.name in [ROLES[word] for word in self.words] else Exact()


def word_of(reader: Reader) -> str | None:
    """Return the word for a function that reads a tensor in backward; None where no published formula covers it."""
    if reader.function.startswith("conv"):
        return "conv"
    if reader.function == "linear":
        return "linear"
    return "norm" if reader.function == "batch_norm" and reader.norm is not None else None


def is_finite(reader: Reader) -> bool:
    """Return whether no gradient overflowed, as happens while a loss scale is being found."""
    return math.isfinite(
        reader.out_grad2 + reader.out_grad_peak + reader.in_grad2 + reader.weight_grad2 + reader.weight_grad_abs
    )


def check_words(name: str, words: object) -> None:
    """Raise ConfigError unless this is one of the words, or several."""
    chosen = (words,) if isinstance(words, str) else words
    if not isinstance(chosen, tuple) or not chosen or not all(isinstance(w, str) and w in ROLES for w in chosen):
        known = ", ".join(repr(word) for word in ROLES)
        raise ConfigError(
            f'{name} expected layers to be some of {known}, got {words!r}; write layers="conv" or layers=({known})'
        )
