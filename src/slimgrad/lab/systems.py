"""The four published systems, each whole: its bound, how it keeps tensors, and whether the batch grows.

    system = system_of("comet")
    system.bound(steps), system.policy          what a session is attached with
    system.note                                 what is not as in the paper, and why, in one line

What a CPU does not have is replaced by the nearest thing that it has, and the note says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import slimgrad
from slimgrad.bounds.base import Fixed
from slimgrad.bounds.covered import ROLES, Covered
from slimgrad.codecs.base import Bound
from slimgrad.errors import ConfigError
from slimgrad.policy import COMPRESS, DISK, HOST, Compress, Plan, RoleBound, Swap
from slimgrad.roles import Need, Role

COMET_LAYERS = ("conv", "norm")  # what convolutions read and, before a batch norm, what they produce
COMET_WARM_UP = 1000  # steps; its runs have hundreds of thousands, so a short run warms up for a tenth of its own
FREELUNCH_REL = 0.02  # nested then takes about 4 bits per value of relu(N(0, 1)): FreeLunch's rate of 8

UNCODED = Swap(DISK, compress=False)


@dataclass(frozen=True, slots=True)
class Only(Fixed):
    """`bound` for the layers that `words` name, exact elsewhere."""

    bound: slimgrad.Relative
    words: tuple[str, ...]

    def of(self, role: Role) -> Bound:
        return Covered(self.bound, self.words).of(role)


@dataclass(frozen=True, slots=True)
class BesideCompute:
    """FreeLunch's hybrid: inputs of convolutions are coded by a worker beside compute, all others swapped uncoded."""

    swap: Swap = UNCODED

    moves_exact = True

    @property
    def tier(self) -> str:
        return self.swap.tier

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep a tensor of this role."""
        if role.name == ROLES["conv"]:
            return COMPRESS.plan(role, tensor, bound)._replace(overlaps=True)
        if role.need is Need.SIGN:  # of a ReLU, whose result the next convolution reads: its values come with that
            return COMPRESS.plan(role, tensor, bound)
        return self.swap.plan(role, tensor, bound)


class System(NamedTuple):
    """A published system; `bound` depends on how many steps a run has."""

    bound: Callable[[int], Any]
    policy: Any
    note: str
    warm_up: Callable[[int], int] | None = None  # steps before the batch grows; None: it never does


def comet_warm_up(steps: int) -> int:
    """Return the steps that COMET trains uncompressed."""
    return max(1, min(COMET_WARM_UP, steps // 10))


def _comet(steps: int) -> slimgrad.Comet:
    return slimgrad.Comet(warmup=comet_warm_up(steps), layers=COMET_LAYERS)


SYSTEMS: dict[str, System] = {
    "comet": System(
        _comet,
        Compress(),
        "COMET codes conv activations and recomputes norms, activations and pooling from them; here inputs of batch "
        "norms are coded under the same bound, and activations and pooling keep a bit or a position per value",
        comet_warm_up,
    ),
    "acgc": System(
        lambda steps: slimgrad.AcGc(0.5),
        Compress("acgc"),
        "AC-GC's formulas for convolutions, linear layers and batch norms, with its quantiser; all else is exact",
    ),
    "freelunch": System(
        lambda steps: Only(slimgrad.Relative(FREELUNCH_REL), ("conv",)),
        BesideCompute(),
        "FreeLunch codes conv activations at ZFP's fixed rate of 8 and swaps the others to the host; here the code is "
        "nested at a bound of about that rate, and swapping is to disk: host memory is where tensors of a CPU are",
    ),
    "cdma": System(
        lambda steps: slimgrad.Exact(),
        Swap(HOST),
        "cDMA leaves zeros out on the way to the host; on a CPU nothing has to move, so zeros are left out in place",
    ),
}


def system_of(name: str) -> System:
    """Return the published system of that name."""
    if name not in SYSTEMS:
        raise ConfigError(f"expected one of the systems {', '.join(SYSTEMS)}, got {name!r}")
    return SYSTEMS[name]
