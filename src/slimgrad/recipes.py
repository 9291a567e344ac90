"""Results of cheap functions, made again in backward instead of stored: norms, activations, pooling, dropout.

    known = before(function, args)                 what has to be known before a cheap function runs
    note(known, function, args, kwargs, result)    after it: how its result is made
    packed(tensor, role)                           -> Recomputed, if the tensor can be made again

A convolution saves its input. Where that is relu(batch_norm(x)) and x is kept bit for bit, because the norm's own
backward reads it, the input is made again from x and takes no memory. Chains may be longer, x -> batch_norm -> relu ->
max_pool -> dropout, as long as each function is given what the last one returned, or a view of it.

Note [Bit for bit]. Made again means the same function, in the same process, on the same bits, so the same bits. A
source of which anything was lost would give other signs and other statistics, which no bound speaks of: then there is
no recipe, and the tensor is stored like any other. For the same reason there is none under autocast, for norms that use
running statistics, and where an argument is a tensor that is neither the source nor a leaf.

Note [Once]. Batch norm is made again without its running statistics, which are so updated once; dropout with the random
state of the first time, which is put back after.

A note sits on the storage of the result, with the version at which it is true; it holds what it needs, as Saved does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from slimgrad.consumers import functions_named
from slimgrad.errors import InternalError
from slimgrad.roles import Need, Role
from slimgrad.saved import Kept, Saved, Stored, changed_in_place, find, versioned
from slimgrad.shelf import Shelf, outside_autocast

NOTE = "_slimgrad_recipe"  # attribute of a storage
VALUES = (Need.VALUES, Need.TIGHT, Need.EXACT)  # flags, masks and positions are as small as a recipe
PLAIN = ("layer_norm", "group_norm", "relu", "gelu", "silu", "leaky_relu", "hardtanh", "relu6", "hardswish", "elu")
POOLS = tuple(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3))
BATCH_NORMS = frozenset({functional.batch_norm})
DROPOUTS = frozenset({functional.dropout})
BATCH_NORM_NAMES = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
CHEAP = frozenset(f for name in (*PLAIN, *POOLS) for f in functions_named(name)) | DROPOUTS | BATCH_NORMS


class Form(NamedTuple):
    """What the result looks like, and at which version that is true."""

    dtype: torch.dtype
    stride: tuple[int, ...]
    version: int


class Recipe:
    """How a tensor is made: one function of one source."""

    def __init__(
        self,
        call: Callable[[torch.Tensor], torch.Tensor],
        source: Source,
        constants: list[torch.Tensor],
        form: Form,
    ) -> None:
        self.call, self.source, self.form = call, source, form
        self.constants = [(constant, constant._version) for constant in constants]
        self._made: tuple[weakref.ref[torch.UntypedStorage], torch.Tensor, int] | None = None  # and its version's guard

    def make(self, shelf: Shelf) -> torch.Tensor:
        """Return the result; while somebody holds one that was made before, and nobody has changed it, that one."""
        if self._made is not None:
            storage, guard, version = self._made[0](), *self._made[1:]
            if storage is not None and guard._version == version:
                again = guard.detach()  # has the version of all that were given, now and later
                again.data = torch.empty(0, dtype=self.form.dtype).set_(storage)
                return again
        result = self._run(shelf)
        self._made = weakref.ref(result.untyped_storage()), versioned(result), result._version
        return result

    @property
    def root(self) -> tuple[Saved | Kept, int]:
        """What the chain begins with, and how many functions lead from there to the result."""
        source, n_calls = self.source, 1
        while isinstance(source, Made):
            source, n_calls = source.recipe.source, n_calls + 1
        return source, n_calls

    def _run(self, shelf: Shelf) -> torch.Tensor:
        for constant, version in self.constants:
            if constant._version != version:
                note = ", which a norm needs to be computed again"
                raise changed_in_place(constant.dtype, constant.shape, constant._version, version, note)
        with torch.no_grad():
            result = outside_autocast(lambda: self.call(_values_of(self.source, shelf)))
        if (result.dtype, result.stride(), result.storage_offset()) != (*self.form[:2], 0):
            raise InternalError(f"expected a result like {self.form} from a recipe, got {result.stride()}")
        return result


class Made(NamedTuple):
    """A view of what a recipe makes."""

    recipe: Recipe
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def restore_from(self, shelf: Shelf) -> torch.Tensor:
        return self.recipe.make(shelf).as_strided(self.size, self.stride, self.offset)


Source = Saved | Kept | Made


class Recomputed:
    """One save of a tensor that is made again; see Note [Changed in place] in saved.py for the guard."""

    __slots__ = ("guard", "made")

    def __init__(self, recipe: Recipe, tensor: torch.Tensor) -> None:
        self.made = _view(recipe, tensor)
        self.guard = versioned(tensor)

    def restore_from(self, shelf: Shelf) -> torch.Tensor:
        """Return the tensor as it was saved."""
        form = self.made.recipe.form
        if self.guard._version != form.version:
            raise changed_in_place(form.dtype, self.made.size, self.guard._version, form.version)
        return self.made.restore_from(shelf)


class Before(NamedTuple):
    """What is known of a call before it runs."""

    source: Made | None  # its input, which the call may change in place
    random_state: torch.Tensor | None


def before(function: Any, args: tuple[Any, ...]) -> Before | None:
    """Return what note() needs of a call that is about to run; None where its result has no recipe."""
    x = args[0] if args else None
    if not isinstance(x, torch.Tensor) or not x.is_cpu or torch.is_autocast_enabled("cpu"):
        return None
    if x.requires_grad and x.nbytes:
        recipe = recipe_of(x)
        source = None if recipe is None else _view(recipe, x)
        return Before(source, torch.get_rng_state() if function in DROPOUTS else None)
    return None


def note(known: Before, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None, result: Any) -> None:
    """Note on the result's storage how it is made, if that is known to give the same bits."""
    if not isinstance(result, torch.Tensor) or result.storage_offset() or result._base is not None:
        return
    arguments = _Arguments.of(function, args, kwargs or {})
    source = known.source
    if source is None and result.untyped_storage() is not args[0].untyped_storage():  # else what it was is gone
        source = _exact_source(args[0])
    if arguments is None or source is None:
        return
    recipe = Recipe(
        arguments.call(known.random_state),
        source,
        arguments.constants,
        Form(result.dtype, result.stride(), result._version),
    )
    setattr(result.untyped_storage(), NOTE, recipe)


def packed(tensor: torch.Tensor, role: Role) -> Recomputed | None:
    """Return what autograd keeps instead of a tensor that can be made again."""
    if role.need not in VALUES:
        return None
    recipe = recipe_of(tensor)
    return None if recipe is None else Recomputed(recipe, tensor)


def recipe_of(tensor: torch.Tensor) -> Recipe | None:
    """Return how the tensor's storage is made, if that is true of its version."""
    recipe = getattr(tensor.untyped_storage(), NOTE, None)
    if recipe is None or recipe.form.version != tensor._version or recipe.form.dtype != tensor.dtype:
        return None
    return recipe


def _exact_source(tensor: torch.Tensor) -> Saved | Kept | None:
    """Return the tensor's values as they are kept for others, if not a bit of them is lost."""
    found = find(tensor, tensor.untyped_storage())
    if isinstance(found, Stored):
        return Saved(found, tensor, False) if found.is_exact else None
    return None if found is None else Kept(tensor)


def _view(recipe: Recipe, tensor: torch.Tensor) -> Made:
    return Made(recipe, tensor.shape, tensor.stride(), int(tensor.storage_offset()))


def _values_of(source: Source, shelf: Shelf) -> torch.Tensor:
    if isinstance(source, Saved):
        return shelf.fetch(source)
    return source.restore() if isinstance(source, Kept) else source.restore_from(shelf)


class _Arguments(NamedTuple):
    """A call without its input."""

    function: Callable[..., torch.Tensor]
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]
    constants: list[torch.Tensor]

    @classmethod
    def of(cls, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Arguments | None:
        """Return the call as it is to be made again; None where that is not the same call."""
        rest, named = list(args[1:]), dict(kwargs)
        if function in BATCH_NORMS:
            bound = dict(zip(BATCH_NORM_NAMES, rest, strict=False)) | named
            if not bound.get("training"):
                return None  # running statistics may change until backward
            rest, named = [], {**bound, "running_mean": None, "running_var": None}
        named.pop("inplace", None)
        constants = [value for value in (*rest, *named.values()) if isinstance(value, torch.Tensor)]
        if not all(constant.is_leaf for constant in constants):
            return None
        return cls(function, tuple(rest), named, constants)

    def call(self, state: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
        function, rest, kwargs = self.function, self.rest, self.kwargs
        if state is None:
            return lambda x: function(x, *rest, **kwargs)

        def with_state(x: torch.Tensor) -> torch.Tensor:
            now = torch.get_rng_state()
            torch.set_rng_state(state)
            try:
                return function(x, *rest, **kwargs)
            finally:
                torch.set_rng_state(now)

        return with_state
