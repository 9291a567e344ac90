"""How a tensor may be kept: Role and bound -> Plan.

A policy is a frozen value with one method, plan(role, tensor, bound). It looks at the tensor's dtype and layout, never
at its values.

    Compress   everything stays where it is, coded as its role allows
    Swap       the same, and large tensors leave for another tier; or they leave as they are
    Recompute  what blocks of the model save is computed again; the rest as another policy says
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch

from slimgrad import codecs
from slimgrad.bounds import Absolute, Exact, Relative
from slimgrad.codecs import Codec, Index, Mask, Nested, Raw, Zvc
from slimgrad.codecs.base import Bound
from slimgrad.errors import ConfigError
from slimgrad.ledger import EXACT, UNKNOWN
from slimgrad.roles import UNKNOWN as UNKNOWN_ROLE
from slimgrad.roles import Need, Role, Window

NEEDED = "needed bit for bit"
NO_CODE = "no code for this dtype or device"
NOT_MOVED = "too small to swap, or beyond the share that is"
AUTO = "auto"
# Roles whose tensor is the input of a cheap function that reads it in backward: from it the result is made again.
SOURCES = frozenset(f"{name} input" for name in ("batch norm", "layer norm", "group norm", "gelu", "silu", "hardswish"))
HOST, DISK = TIERS = ("host", "disk")


class RoleBound(Protocol):
    """A bound that knows what it means for a role; see slimgrad.bounds."""

    def of(self, role: Role) -> Bound: ...


class Plan(NamedTuple):
    """How to keep a tensor; without a codec it stays as it is, for `reason`."""

    codec: Codec | None
    bound: Bound | None = None
    axis: int | None = None  # of channels with steps of their own
    row: int = 0  # ... or the length of rows with steps of their own
    keeps_sign: bool = False  # zeros and signs come back exactly
    reason: str = ""
    tier: str = ""  # where the bytes go: DISK, HOST; "": the arena
    overlaps: bool = False  # coded by the worker beside training


class Policy(Protocol):
    """What a session asks of its policy. One that has a `moves_exact` that is true plans for unknown tensors too."""

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan: ...


@dataclass(frozen=True, slots=True)
class Compress:
    """Code everything; `codec` replaces the nested code for values (lossless roles keep their own codes).

    `give_back`: after so many bytes were coded or decoded, malloc is asked to give freed memory back to the system; 0
    for never. By itself it is, every 256 MiB, where torch has huge pages (THP_MEM_ALLOC_ENABLE=1 in the environment),
    which make it cheap; without them it halves the resident set as well, and slows a step by a tenth or more.
    `derive`: results of norms and activations are made from their coded input, where the bound allows it (derived.py).
    """

    codec: str | Codec | None = None
    give_back: int | None = None
    derive: bool = True
    is_constant: ClassVar[bool] = True  # plans follow from role, dtype, device and bound: a session may remember them

    def __post_init__(self) -> None:
        if self.codec is not None:
            codecs.get(self.codec)
        if self.give_back is not None and (not isinstance(self.give_back, int) or self.give_back < 0):
            raise ConfigError(
                f"expected give_back to be a number of bytes, got {self.give_back!r}; write Compress(give_back=1 << 28)"
            )

    @property
    def derives(self) -> bool:
        return self.derive and self.codec is None

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep a tensor of this role."""
        if role.need is Need.EXACT:
            return UNKNOWN_PLAN if role is UNKNOWN_ROLE else NEEDED_PLAN
        if not tensor.is_cpu:
            return NO_CODE_PLAN
        if role.need in (Need.SIGN, Need.MASK):
            return MASK_PLAN
        if role.need is Need.INDEX:
            return Plan(_index(role.window, tensor), keeps_sign=True)
        return _values_plan(self.codec, role, tensor.dtype, bound.of(role))


@dataclass(frozen=True, slots=True)
class Swap:
    """Move tensors of at least `min_bytes` to host memory or disk, coded on the way as Compress does, or as they are.

    Smaller ones stay in the arena; with `compress=False` they stay as they are, and gradients are exact. `fraction` is
    the share of the bytes that leave, those saved first. `overlap` has the worker code beside training.
    """

    tier: str = HOST
    compress: bool = True
    directory: str | os.PathLike[str] | None = None
    min_bytes: int = 1 << 20
    fraction: float = 1.0
    overlap: bool = False

    moves_exact = True

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ConfigError(f"expected tier='host' or tier='disk', got {self.tier!r}")
        if self.tier == DISK and not hasattr(os, "preadv"):
            raise ConfigError("expected a system with pread and pwrite for tier='disk', got none; use tier='host'")
        if not isinstance(self.min_bytes, int) or self.min_bytes < 0:
            raise ConfigError(f"expected min_bytes to be a number of bytes, got {self.min_bytes!r}")
        if not isinstance(self.fraction, (int, float)) or not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"expected 0 < fraction <= 1, got {self.fraction!r}; to swap nothing use Compress()")

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep a tensor of this role."""
        plan = COMPRESS.plan(role, tensor, bound) if self.compress else NOT_MOVED_PLAN
        if tensor.untyped_storage().nbytes() < self.min_bytes or (self.tier == DISK and not tensor.is_cpu):
            return plan
        if plan.codec is None:
            if not self.compress or self.tier == DISK or not tensor.is_cpu:
                return RAW_PLAN._replace(tier=self.tier, reason=plan.reason)
            return plan
        return plan._replace(tier=self.tier, overlaps=self.overlap)


@dataclass(frozen=True, slots=True)
class Recompute:
    """Compute again instead of storing: results of cheap layers (recipes.py), or whole blocks of the model (blocks.py).

    Without `blocks`, results of norms, activations, pooling and dropout are made again from what backward needs anyway,
    which is kept bit for bit for the purpose. `blocks` are patterns of module paths, or "auto": the elements of
    Sequential and ModuleList that have modules of their own. Everything else is kept as `other` says.
    """

    blocks: Literal["auto"] | tuple[str, ...] | list[str] | None = None
    other: Compress | Swap = Compress()

    def __post_init__(self) -> None:
        if isinstance(self.blocks, str) and self.blocks != AUTO:
            raise ConfigError(
                f"expected blocks=[pattern, ...] or 'auto', got {self.blocks!r}; write blocks=[{self.blocks!r}]"
            )
        if self.blocks is not None and self.blocks != AUTO:
            if not isinstance(self.blocks, (list, tuple)) or not all(isinstance(name, str) for name in self.blocks):
                raise ConfigError(
                    f"expected blocks=[pattern, ...] or 'auto', got {self.blocks!r}; write blocks=['layer1.*'], with "
                    "patterns of module paths"
                )
            object.__setattr__(self, "blocks", tuple(self.blocks))
        check_policy(self.other)

    @property
    def makes_again(self) -> bool:
        return self.blocks is None

    @property
    def moves_exact(self) -> bool:
        return getattr(self.other, "moves_exact", False)

    def plan(self, role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep a tensor that is stored."""
        return self.other.plan(role, tensor, Exact() if self.makes_again and role.name in SOURCES else bound)


COMPRESS = Compress()
UNKNOWN_PLAN = Plan(None, reason=UNKNOWN)
NEEDED_PLAN = Plan(None, reason=NEEDED)
NO_CODE_PLAN = Plan(None, reason=NO_CODE)
EXACT_PLAN = Plan(None, reason=EXACT)
MASK_PLAN = Plan(Mask(), keeps_sign=True)
NOT_MOVED_PLAN = Plan(None, reason=NOT_MOVED)
RAW_PLAN = Plan(Raw(), keeps_sign=True)


def _index(window: Window | None, indices: torch.Tensor) -> Index:
    if window is None:
        return Index()
    return Index.of_pool(
        indices, window.input_size, window.kernel, window.stride or None, window.padding or 0, window.dilation or 1
    )


@functools.lru_cache(maxsize=4096)
def _values_plan(wish: str | Codec | None, role: Role, dtype: torch.dtype, bound: Bound) -> Plan:
    is_exact = not bound.needs_rms and bound.eps(1.0) == 0.0
    codec: Codec | None = None if wish is None else codecs.get(wish)
    if is_exact and (codec is None or not codec.is_lossless):
        codec = Zvc() if role.is_sparse else None
    elif codec is None:
        codec = Nested(centred=role.is_centred, sampled=True)
    if codec is None:
        return EXACT_PLAN
    if codec.dtypes and dtype not in codec.dtypes:
        return NO_CODE_PLAN
    if codec.is_lossless:
        return Plan(codec, keeps_sign=True)
    keeps_sign = isinstance(codec, Nested) and not codec.centred
    if role.keeps_sign and not keeps_sign:
        return NO_CODE_PLAN
    return Plan(codec, bound, role.axis, role.row, keeps_sign)


def stricter(first: RoleBound, second: RoleBound) -> RoleBound:
    """Return the bound that keeps both; bounds of different kinds are kept together only by Exact()."""
    if first == second:
        return first
    if isinstance(first, (Absolute, Relative)) and isinstance(second, type(first)):
        return first if first.eps(1.0) <= second.eps(1.0) else second
    return Exact()


def check_policy(policy: object) -> None:
    """Raise ConfigError unless the policy is one that there is."""
    if isinstance(policy, type) or not callable(getattr(policy, "plan", None)):
        raise ConfigError(
            "expected a policy, such as policy=slimgrad.Compress(), Swap(tier='disk'), Recompute(), Hybrid() or "
            f"Budget('4GiB'), got {policy!r}"
        )
