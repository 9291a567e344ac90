"""How many bytes a coded tensor will take, before there are values to code.

Two sources: a ledger of a real run, which knows the ratio of every module and role; and, where it has nothing, the rate
curves of the nested code on normal data (bounds/rates.py) at the step that the bound asks for. The curves are right
within a few per cent for batch-normalised nets; a trained net is sparser, so they err on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from slimgrad.bounds import rates
from slimgrad.codecs import Index, Mask, Nested, Raw, Zvc
from slimgrad.ledger import Sums, ratio
from slimgrad.policy import Plan
from slimgrad.roles import Role

HEADER = 64  # bytes of a payload beyond its values, roughly: header and index
ZVC_DENSITY = 0.5  # of the results of a ReLU
UNKNOWN_RATIO = 4.0  # of a codec that no curve describes
UNIT_RMS = 1.0  # of a tensor under an absolute bound: what normalisation aims at


@dataclass(frozen=True, slots=True)
class Rates:
    """Predicted sizes; `measured` holds original / stored bytes by (module path, role), `flat` one ratio for all."""

    measured: Mapping[tuple[str, str], float] = field(default_factory=dict)
    flat: float | None = None

    @classmethod
    def of_run(cls, sums: Sums) -> Rates:
        """Return the rates that a session's ledger saw."""
        found = {key: ratio(coded.nbytes_in, coded.nbytes_out) for key, coded in sums.coded.items() if coded.n}
        return cls(found)

    def nbytes(self, path: str, role: Role, plan: Plan, numel: int, nbytes: int) -> int:
        """Return the bytes that `numel` values of `nbytes` in all take under this plan."""
        known = self.flat or self.measured.get((path, role.name))
        if known is not None:
            return int(nbytes / known)
        return min(int(bits_of(role, plan, nbytes * 8 / max(numel, 1)) * numel / 8) + HEADER, nbytes)


def bits_of(role: Role, plan: Plan, raw_bits: float) -> float:
    """Return the bits per value that a plan's code takes."""
    codec, bound = plan.codec, plan.bound
    if isinstance(codec, Mask):
        return 1.0
    if isinstance(codec, Index):
        return _index_bits(role)
    if isinstance(codec, Zvc):
        return 1.0 + ZVC_DENSITY * raw_bits
    if isinstance(codec, Nested) and bound is not None:
        step = 2 * bound.eps(UNIT_RMS)
        curve = "centred" if codec.centred else "sparse" if role.is_sparse else "signed"
        finer = math.log2(rates.MEASURED_AT[0] / step)  # beyond the curves every halving costs a bit per non-zero
        beyond = max(finer, 0.0) * (ZVC_DENSITY if curve == "sparse" else 1.0)
        return min(float(rates.bits(curve, step)) + beyond, raw_bits)
    return raw_bits if codec is None or isinstance(codec, Raw) else raw_bits / UNKNOWN_RATIO


def _index_bits(role: Role) -> float:
    kernel = 4 if role.window is None else role.window.kernel
    n_dims = 2 if role.window is None else len(role.window.input_size)
    n_places = kernel**n_dims if isinstance(kernel, int) else math.prod(kernel)
    return float(max(1, math.ceil(math.log2(n_places))))
