"""What people type for a bound or a policy, and the objects that it means.

    bound_of("noise:0.05")      policy_of("compress:zvc")

Everything that does not parse is answered with the whole grammar. Policies that the library does not have yet are known
by name, so that the answer is "not built yet" and what to type meanwhile, and not "unknown".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import slimgrad
from slimgrad.bounds.noise import Noise
from slimgrad.errors import ConfigError

BOUND_GRAMMAR = (
    "noise:SHARE (such as noise:0.05), relative:RMS (relative:0.5), absolute:EPS (absolute:1e-3), exact, "
    "comet or comet:FRACTION (comet:0.01), acgc or acgc:E2 (acgc:0.5)"
)
POLICY_GRAMMAR = (
    "compress or compress:CODEC (compress:zvc), swap:host or swap:disk, recompute, hybrid, budget:SIZE (budget:4GiB)"
)


class BoundWord(NamedTuple):
    """A kind of bound: what makes it from a number, and whether there is a number."""

    make: Callable[..., Any]
    number: str  # "none", "may" or "must"


BOUNDS: dict[str, BoundWord] = {
    "noise": BoundWord(Noise, "may"),
    "relative": BoundWord(slimgrad.Relative, "must"),
    "absolute": BoundWord(slimgrad.Absolute, "must"),
    "exact": BoundWord(slimgrad.Exact, "none"),
    "comet": BoundWord(slimgrad.Comet, "may"),
    "acgc": BoundWord(slimgrad.AcGc, "may"),
}
POLICIES = {  # word: name of the class, and whether something follows the colon
    "compress": ("Compress", "may"),
    "swap": ("Swap", "may"),
    "recompute": ("Recompute", "none"),
    "hybrid": ("Hybrid", "none"),
    "budget": ("Budget", "must"),
}


def bound_of(text: str) -> Any:
    """Return the bound that words such as "exact" or "relative:0.5" name."""
    kind, colon, value = text.partition(":")
    word = BOUNDS.get(kind)
    if word is None or (word.number == "must" and not value) or (word.number == "none" and colon):
        raise ConfigError(f"expected a bound of the form {BOUND_GRAMMAR}; got {text!r}")
    if not colon:
        return word.make()
    try:
        return word.make(float(value))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"expected a number after '{kind}:', got {text!r}; the grammar is {BOUND_GRAMMAR}") from error


def policy_of(text: str) -> Any:
    """Return the policy that words such as "compress:zvc" or "swap:disk" name."""
    kind, colon, value = text.partition(":")
    name, takes = POLICIES.get(kind, ("", ""))
    if not name or (takes == "must" and not value) or (colon and (takes == "none" or not value)):
        raise ConfigError(f"expected a policy of the form {POLICY_GRAMMAR}; got {text!r}")
    make = getattr(slimgrad, name, None)
    if make is None:
        built = ", ".join(word for word, (known, _) in POLICIES.items() if hasattr(slimgrad, known))
        raise ConfigError(f"expected a policy that is built ({built}), got {text!r}, which is not built yet")
    return make(value) if value else make()
