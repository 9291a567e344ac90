"""What a saved tensor is and what of it backward needs: the vocabulary. consumers.py knows which function needs what.

A Role is one constant object per kind of tensor, compared by identity. Only what is listed there has another need than
EXACT: labels come from the function that saves the tensor and its arguments, never from values or order.

    SHAPE      its size and layout                     SIGN      one bit: on which side of a threshold each value is
    MASK       every bit, and there are two values     INDEX     every bit, and they are positions in a pooling window
    VALUES     values within the bound                 TIGHT     the same, with the bound made smaller by `scale`
    EXACT      every bit; also whatever is unknown
    PARAMETER  a parameter or a view of one: nothing is kept but the reference
    REBUILD    a copy of `leaf` in another dtype, made by autocast: made again when it is needed

Several functions may save one storage; `merged` is the role that serves them all.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Need(enum.Enum):
    """How much of a tensor backward reads; see the module's docstring."""

    SHAPE = "shape"
    SIGN = "sign"
    MASK = "mask"
    INDEX = "index"
    VALUES = "values"
    TIGHT = "tight"
    EXACT = "exact"
    PARAMETER = "parameter"
    REBUILD = "rebuild"


class Comparison(enum.Enum):
    """How a function compares; they differ in what they make of bounds and of NaN."""

    NOT_BELOW = "not x <= low"  # relu, threshold: true for NaN
    ABOVE = "x > low"  # leaky_relu
    BETWEEN = "low < x < high"  # hardsigmoid
    BETWEEN_NUMBERS = "low < x < high, no NaN"  # hardtanh: for NaN, torch's vector loop and its tail disagree
    WITHIN = "low <= x <= high"  # clamp


class Flag(NamedTuple):
    """One bit per value, and two stand-ins that give the same bits again."""

    test: Comparison
    low: float
    high: float
    if_set: float
    if_not: float

    def bits(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """Return the flags of all values as booleans, in `out` where that is given; None: these values have none."""
        if self.test is Comparison.NOT_BELOW:
            return torch.le(x, self.low, out=out).logical_not_()
        if self.test is Comparison.ABOVE:
            return torch.gt(x, self.low, out=out)
        if self.test is Comparison.WITHIN:
            return torch.ge(x, self.low, out=out).logical_and_(x <= self.high)
        if self.test is Comparison.BETWEEN_NUMBERS and math.isnan(x.sum().item()):
            return None
        return torch.gt(x, self.low, out=out).logical_and_(x < self.high)

    @property
    def is_sign(self) -> bool:
        """Whether a code that keeps zeros and signs keeps the flags."""
        return self.low == 0.0 and self.test in (Comparison.NOT_BELOW, Comparison.ABOVE)


class Window(NamedTuple):
    """The arguments of a pooling function; sizes are those of the spatial dimensions."""

    input_size: tuple[int, ...]
    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] | None = None
    dilation: int | tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """One kind of saved tensor. `axis` is the channel axis of the tensor as it is saved."""

    name: str
    need: Need
    axis: int | None = None
    row: int = 0  # where not 0: this many values in a row are normalised together, and the bound is relative to them
    is_centred: bool = False  # the distance from the channel's mean matters, not zero and sign
    is_sparse: bool = False  # many exact zeros, by construction
    keeps_sign: bool = False  # zeros and signs have to come back exactly
    scale: float = 1.0  # of the bound
    absolute: float = 0.0  # where not 0: a relative bound means this times `rel`, whatever the size of the values
    in_memory: bool = False  # SHAPE: whoever asks for it would copy anything but real memory of this layout
    flag: Flag | None = None  # SIGN
    window: Window | None = None  # INDEX; None: the code finds the bits it needs
    leaf: torch.Tensor | None = None  # REBUILD

    @property
    def is_exact(self) -> bool:
        return self.need is Need.EXACT


PLAIN_FIELDS = ("axis", "row", "is_centred", "is_sparse", "keeps_sign", "scale", "absolute")
UNKNOWN = Role("unknown", Need.EXACT)
EXACT = Role("exact", Need.EXACT)  # recognised, and needed bit for bit
PARAMETER = Role("parameter", Need.PARAMETER)
BOOLEAN = Role("boolean", Need.MASK)

_merged: dict[tuple[Role, Role], Role] = {}


def merged(first: Role, second: Role) -> Role:
    """Return the role of a storage whose values both roles read; neither is SHAPE or SIGN."""
    if first is second:
        return first
    found = _merged.get((first, second))
    if found is None:
        found = _merged[first, second] = _merge(first, second)
    return found


def _merge(first: Role, second: Role) -> Role:
    values = (Need.VALUES, Need.TIGHT)
    if first.need not in values or second.need not in values:
        return first if second.need in values else second  # the one that needs every bit
    if bool(first.absolute) != bool(second.absolute):
        return EXACT  # which of the two bounds is smaller depends on the values
    stronger, weaker = (second, first) if second.scale < first.scale else (first, second)
    keeps_sign = first.keeps_sign or second.keeps_sign
    normed = next((role for role in (first, second) if role.row or role.is_centred), first)
    result = Role(
        stronger.name,
        Need.TIGHT if Need.TIGHT in (first.need, second.need) else Need.VALUES,
        axis=None if keeps_sign else normed.axis,
        row=0 if keeps_sign else normed.row,
        is_centred=normed.is_centred and not keeps_sign,
        is_sparse=first.is_sparse or second.is_sparse,
        keeps_sign=keeps_sign,
        scale=min(first.scale, second.scale),
        absolute=min(first.absolute, second.absolute),
    )
    return next((role for role in (stronger, weaker) if _says_the_same(role, result)), result)


@functools.lru_cache(maxsize=1024)
def with_flags(role: Role) -> Role:
    """Return the role for values of which SIGN is read too: not centred, so that one code can serve both."""
    return replace(role, is_centred=False, axis=None, row=0)


@functools.lru_cache(maxsize=1024)
def with_zeros(role: Role) -> Role:
    """Return the role for values of which many are known to be zero; to who needs every bit that says nothing."""
    return role if role.is_sparse or role.need not in (Need.VALUES, Need.TIGHT) else replace(role, is_sparse=True)


def _says_the_same(role: Role, other: Role) -> bool:
    return role.need is other.need and all(getattr(role, field) == getattr(other, field) for field in PLAIN_FIELDS)


@functools.lru_cache(maxsize=4096)
def flag_role(
    name: str, test: Comparison, low: float, high: float, dtype: torch.dtype, is_sparse: bool = False
) -> Role:
    """Return the SIGN role for this comparison, or UNKNOWN where the bounds are not numbers of this dtype.

    A bound that the dtype cannot hold is rounded by the function itself, and not every function rounds alike.
    """
    with _disable_current_modes():  # fake tensors have no values to look at
        flag = _flag(test, low, high, dtype)
    return UNKNOWN if flag is None else Role(name, Need.SIGN, flag=flag, is_sparse=is_sparse)


def _flag(test: Comparison, low: float, high: float, dtype: torch.dtype) -> Flag | None:
    if any(float(torch.tensor(bound, dtype=dtype)) != bound for bound in (low, high)) or not low < high:
        return None
    if test is Comparison.WITHIN:
        if_set, if_not = (low, -math.inf) if low > -math.inf else (high, math.inf)
    else:
        middle = low + 1.0 if high == math.inf else high - 1.0 if low == -math.inf else (low + high) / 2
        if_set, if_not = middle, low if low > -math.inf else high
    flag = Flag(test, low, high, if_set, if_not)
    bits = flag.bits(torch.tensor([if_set, if_not], dtype=dtype))
    return flag if bits is not None and bits.tolist() == [True, False] else None


def role_to_dict(role: Role) -> dict[str, str | int | float | bool | None]:
    """Return a role of values as plain data, for checkpoints."""
    return {"name": role.name, "need": role.need.value, **{field: getattr(role, field) for field in PLAIN_FIELDS}}


def role_from_dict(data: Mapping[str, Any]) -> Role:
    return Role(**{**data, "need": Need(data["need"])})
