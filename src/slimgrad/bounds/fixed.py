"""Bounds that stay as they are: Exact, Absolute, Relative.

A fixed bound is a frozen value that answers two questions: eps(rms), how far may a restored value be from the original;
and of(role), what does that mean for this kind of tensor (a smaller bound where backward amplifies an error).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slimgrad.bounds.base import Fixed
from slimgrad.errors import ConfigError
from slimgrad.roles import Role


@dataclass(frozen=True, slots=True)
class Exact(Fixed):
    """Every bit comes back: gradients are identical to plain PyTorch."""

    @property
    def needs_rms(self) -> bool:
        return False

    def eps(self, rms: float) -> float:
        return 0.0

    def of(self, role: Role) -> Exact:
        return self


@dataclass(frozen=True, slots=True)
class Absolute(Fixed):
    """|restored - original| <= value for every element."""

    value: float

    def __post_init__(self) -> None:
        _check_positive("Absolute", self.value, "Absolute(0.01)")

    @property
    def needs_rms(self) -> bool:
        return False

    def eps(self, rms: float) -> float:
        return self.value

    def of(self, role: Role) -> Absolute:
        return self if role.scale == 1.0 else Absolute(self.value * role.scale)


@dataclass(frozen=True, slots=True)
class Relative(Fixed):
    """|restored - original| <= rel * RMS of the tensor's non-zero values."""

    rel: float

    def __post_init__(self) -> None:
        _check_positive("Relative", self.rel, "Relative(0.25)")

    @property
    def needs_rms(self) -> bool:
        return True

    def eps(self, rms: float) -> float:
        return self.rel * rms

    def of(self, role: Role) -> Absolute | Relative:
        if role.absolute:
            return Absolute(self.rel * role.absolute)
        return self if role.scale == 1.0 else Relative(self.rel * role.scale)


def _check_positive(name: str, value: float, example: str) -> None:
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ConfigError(
            f"{name} expected a positive finite number, got {value!r}; write {example}, or Exact() for no error"
        )
