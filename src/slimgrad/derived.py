"""Results of norms and activations, made again in backward from the coded input of the first of them.

    making = begin(call, bound)               before one of FUNCTIONS runs
    making.note(result, stored, affine)       after it: notes on the result's storage how it is made
    derivation_of(tensor)                     what is noted there; its part() is what is stored of the tensor

A batch norm saves its input x, a convolution behind it relu(batch_norm(x)). Both are functions of x, and x is coded
finely for the norm's sake, so the second need not be stored at all: decoded, scaled, shifted and clipped it is as good
as the first. That is one value less of every pair, and one tensor less to code.

Note [What it needs]. A bound that promises something about gradients (bounds that say so: `derives`), since an error in
x arrives scaled by the norm's weight: nobody has promised how large that is beside the values themselves. It is
measured like every other error of x (measure.py), so both have to be under the same bound, unless x is kept exactly.
Recompute (recipes.py) does the same with every bit.

Note [Signs]. What ReLU lets through must not depend on rounding: at the steps that a noise budget allows, a tenth of
the values would change their sign. So x is coded after its batch norm has run, when mean and deviation are known, in
steps of which one ends where the norm's result is zero ("edges"): no bin has values on both sides, signs come back.

Note [Who holds what]. The note on a storage holds the Stored of x weakly, for the result may outlive the graph. What is
saved of the result holds it strongly, and with it the code that was there then: x may be coded anew for somebody else.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn import functional

from slimgrad.coder import CPU, Layout, fills, layout_of
from slimgrad.consumers import CURVED_SCALE, Call, functions_named
from slimgrad.policy import Plan
from slimgrad.roles import Need, Role
from slimgrad.saved import Part, Stored, plain_storage
from slimgrad.shelf import outside_autocast
from slimgrad.storage import Buffers
from slimgrad.tiers import restored

NOTE = "_slimgrad_derivation"  # attribute of a storage
BATCH_NORM_NODE = "NativeBatchNormBackward0"
FAR, FLAT, NEAR_ZERO = 1e3, 0.99, 1e-5  # |mean| / deviation; sqrt(eps) / deviation; a bias
MAX_CONSTANT = 1 << 16  # bytes: parameters of a norm are copied, since they may change before backward

Step = Callable[[torch.Tensor], torch.Tensor]  # may write over what it is given


class Derivation(NamedTuple):
    """How the values in a storage follow from those of a Stored."""

    source: weakref.ref[Stored]
    steps: tuple[Step, ...]
    layout: Layout  # of source and result
    edges: torch.Tensor | None  # where signs change; None: they are not kept
    bound: object  # the adaptive bound that holds for the source
    version: int = 0  # of the result
    root: weakref.ref[torch.Tensor] | None = None  # ... of which above 0 one tensor's changes are counted

    def then(self, step: Step, keeps_sign: bool) -> Derivation:
        return self._replace(steps=(*self.steps, step), edges=self.edges if keeps_sign else None)

    def may_be_read_under(self, bound: object) -> bool:
        """Return whether a reader under this bound may have it: one that derives, and knows of all errors in it."""
        stored = self.source()
        is_exact = stored is not None and stored.is_exact
        return getattr(bound, "derives", False) and (is_exact or self.bound == bound)

    def serves(self, role: Role) -> bool:
        """Return whether the result can be made for this role, or has to be coded."""
        stored = self.source()
        if stored is None or (stored.values is None and stored.kept is None) or not _may_be_derived(role):
            return False
        return role.need is not Need.SIGN or (self.keeps_sign and role.flag is not None and role.flag.is_sign)

    @property
    def keeps_sign(self) -> bool:
        stored = self.source()
        if stored is None or self.edges is None:
            return False
        return stored.kept is not None or (stored.values is not None and stored.values.edges is self.edges)

    def part(self) -> Part:
        """Return what is stored of the result."""
        stored = self.source()
        assert stored is not None
        derived = Derived(stored, stored.values, self)
        return Part(derived, derived, Plan(derived, keeps_sign=self.keeps_sign), derived)  # pyright: ignore


class Derived:
    """The values of a storage of which nothing is stored; takes the places of a codec, a slot and a coder."""

    __slots__ = ("_code", "layout", "steps", "stored")

    name: ClassVar[str] = "derived"
    is_lossless: ClassVar[bool] = False
    nbytes: ClassVar[int] = 0

    def __init__(self, stored: Stored, code: Part | None, derivation: Derivation) -> None:
        self.stored, self._code = stored, code
        self.layout, self.steps = derivation.layout, derivation.steps

    def decode(self, _: object, buffers: Buffers) -> torch.Tensor:
        """Return the values in memory of their own."""
        return outside_autocast(self._make, buffers)

    @torch.no_grad()
    def _make(self, buffers: Buffers) -> torch.Tensor:
        return functools.reduce(lambda values, step: step(values), self.steps, self._source_values(buffers))

    def _source_values(self, buffers: Buffers) -> torch.Tensor:
        stored, code = self.stored, self._code
        if stored.kept is not None or code is None:
            stored.check(self.layout[0])
            assert stored.kept is not None
            size, stride, _ = self.layout
            values = torch.empty_strided(size, stride, dtype=stored.dtype, device=CPU)
            return values.copy_(stored.kept.as_strided(*self.layout))
        if code.coder is not None and code.coder.layout == self.layout:
            return code.coder.decode(code.slot, buffers)  # pyright: ignore[reportArgumentType]
        return restored(code.codec, code.slot, stored.form, buffers).as_strided(*self.layout)


class Making:
    """One call of a function whose result can be derived."""

    __slots__ = ("bound", "call", "from_input", "layout")

    def __init__(self, call: Call, bound: object) -> None:
        self.call, self.bound, self.layout = call, bound, layout_of(call.args[0])
        found = derivation_of(call.args[0])  # now: the call may change it in place
        self.from_input = found if found is not None and found.layout == self.layout else None

    @property
    def is_batch_norm(self) -> bool:
        return self.call.function is functional.batch_norm

    @property
    def is_norm(self) -> bool:
        return self.is_batch_norm or self.call.function in NORMS

    def clipped(self, result: torch.Tensor) -> Derivation | None:
        """Return the derivation of what a ReLU saves, its own result, where there is one."""
        source = self.from_input
        if source is None or self.call.function not in RELUS or layout_of(result) != source.layout:
            return None
        return source.then(torch.relu_, True)

    def affine(self, result: Any) -> Affine | None:
        """Return what a batch norm has done to its input."""
        if not isinstance(result, torch.Tensor):
            return None
        node = result.grad_fn
        if type(node).__name__ != BATCH_NORM_NODE or not node._saved_training:  # pyright: ignore
            return None
        weight, bias = (self.call.argument(*where) for where in ((3, "weight"), (4, "bias")))
        with torch.no_grad():
            mean, inv_std = node._saved_result1, node._saved_result2  # pyright: ignore
            scale = inv_std if weight is None else inv_std * weight
            shift = -mean * scale if bias is None else bias - mean * scale
            is_sure = _signs_are_sure(mean, inv_std, bias, node._saved_eps)  # pyright: ignore
            return Affine(scale, shift, -shift / scale if is_sure else None, result.dim())

    def note(self, result: Any, stored: Stored | None, affine: Affine | None = None) -> None:
        """Note on the result's storage how it is made, given what its input is stored as."""
        source = None if self.call.function in ONLY_AFTER else stored
        before = None if self.is_norm else self.from_input
        if source is None and before is None:
            return
        if not _is_plain(result) or not fills(result, result.untyped_storage().nbytes()):
            return
        if layout_of(result) != self.layout:  # values lie elsewhere in memory than those they are made from
            return
        step = affine if self.is_batch_norm else STEPS[self.call.function](self.call)
        if step is None:
            return
        if source is not None:
            edges = None if affine is None else affine.edges
            derivation = Derivation(weakref.ref(source), (step,), self.layout, edges, self.bound)
        else:
            assert before is not None
            derivation = before.then(step, self.call.function in KEEP_SIGN)
        version = result._version
        root = weakref.ref(_base(result)) if version else None
        setattr(result.untyped_storage(), NOTE, derivation._replace(version=version, root=root))


class Affine(NamedTuple):
    """x * scale + shift, by channel."""

    scale: torch.Tensor
    shift: torch.Tensor
    edges: torch.Tensor | None  # where it is zero; None: that cannot be told from rounding
    ndim: int

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, *(1,) * (self.ndim - 2))
        return values.mul_(self.scale.view(shape)).add_(self.shift.view(shape))


def begin(call: Call | None, bound: object) -> Making | None:
    """Return the call as one whose result may be derived; None where it is not."""
    if call is None or call.function not in FUNCTIONS or not call.args or not _is_plain(call.args[0]):
        return None
    return None if torch.is_autocast_enabled("cpu") else Making(call, bound)


def derivation_of(tensor: torch.Tensor) -> Derivation | None:
    """Return how the values in the tensor's storage are made, if that is true of its version."""
    found = getattr(tensor.untyped_storage(), NOTE, None)
    if found is None or found.version != tensor._version or tensor.dtype is not torch.float32:
        return None
    return found if found.root is None or found.root() is _base(tensor) else None


def _may_be_derived(role: Role) -> bool:
    """Return whether an error of the size of the source's does no great harm before it was measured.

    To a norm it may: its bound is relative to rows or channels of its own, which may be small beside the source's.
    """
    if role.row or role.is_centred or role.keeps_sign:
        return False
    if role.need is Need.TIGHT:
        return role.scale >= CURVED_SCALE and not role.absolute
    return role.need in (Need.VALUES, Need.SIGN)


def _is_plain(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.float32 or not tensor.is_cpu:
        return False
    return plain_storage(tensor, 0) is not None and not tensor.is_inference()


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _signs_are_sure(mean: torch.Tensor, inv_std: torch.Tensor, bias: torch.Tensor | None, eps: float) -> bool:
    """Return whether rounding decides next to no sign of a batch norm's result, in any channel.

    It does where values are far from zero beside their deviation, and where they are all alike and the result is zero.
    """
    is_far = mean.abs() * inv_std > FAR
    is_flat = inv_std * math.sqrt(eps) > FLAT
    is_zero = torch.ones_like(is_flat) if bias is None else bias.abs() < NEAR_ZERO
    return not bool((is_far | (is_flat & is_zero)).any())


def _in_place(function: Callable[..., torch.Tensor], *names: tuple[int, str, Any]) -> Callable[[Call], Step]:
    """Return the step of an activation whose function takes these arguments."""

    def step_of(call: Call) -> Step:
        arguments = [call.argument(*name) for name in names]
        return lambda values: function(values, *arguments)

    return step_of


def _gelu(call: Call) -> Step:
    kind = call.argument(1, "approximate", "none")
    return lambda values: values.copy_(functional.gelu(values, approximate=kind))


def _norm(function: Callable[..., torch.Tensor], shape_name: str) -> Callable[[Call], Step | None]:
    """Return the step of a norm over (input, shape, weight, bias, eps)."""

    def step_of(call: Call) -> Step | None:
        shape, weight, bias = (call.argument(*at) for at in ((1, shape_name), (2, "weight"), (3, "bias")))
        eps = call.argument(4, "eps", 1e-5)
        if any(constant is not None and constant.nbytes > MAX_CONSTANT for constant in (weight, bias)):
            return None
        weight, bias = (None if constant is None else constant.detach().clone() for constant in (weight, bias))
        return lambda values: values.copy_(function(values, shape, weight, bias, eps))

    return step_of


def _table() -> dict[str, Callable[[Call], Step | None]]:
    ops = torch.ops.aten
    return {
        "relu": _in_place(torch.relu_),
        "leaky_relu": _in_place(functional.leaky_relu_, (1, "negative_slope", 0.01)),
        "hardtanh": _in_place(functional.hardtanh_, (1, "min_val", -1.0), (2, "max_val", 1.0)),
        "relu6": _in_place(lambda values: functional.hardtanh_(values, 0.0, 6.0)),
        "silu": _in_place(ops.silu_),
        "hardswish": _in_place(ops.hardswish_),
        "gelu": _gelu,
        "layer_norm": _norm(functional.layer_norm, "normalized_shape"),
        "group_norm": _norm(functional.group_norm, "num_groups"),
    }


RELUS = frozenset(functions_named("relu"))
NORMS = frozenset(function for name in ("layer_norm", "group_norm") for function in functions_named(name))
KEEP_SIGN = RELUS | frozenset(functions_named("leaky_relu"))
# These save no values of their input, so nothing is stored of it for their sake
ONLY_AFTER = KEEP_SIGN | frozenset(function for name in ("hardtanh", "relu6") for function in functions_named(name))
STEPS = {function: step for name, step in _table().items() for function in functions_named(name)}
FUNCTIONS = frozenset(STEPS) | {functional.batch_norm}
