"""What pack hands to autograd, and the one Stored behind all saves of a storage.

    Kept      the tensor itself, with its version: small tensors, parameters, and what cannot be coded
    Saved     one view of a Stored: size, stride and offset, so that it comes back exactly as it was
    Shaped    size and layout alone
    Passed    what saved-tensor hooks of somebody else, around ours, made of a tensor that we leave alone
    Rebuilt   a copy of a leaf in another dtype, which is made again instead of kept

Note [One storage, one Stored]. The storage object of torch lives exactly as long as its memory and is the same object
whoever asks, so a note on it finds the Stored without tables and without addresses. It is shared only while the version
is the same, and above version 0 only by views of the same tensor, because a version counts one tensor's changes.

Note [Strictest need]. A Stored grows with what its savers need: flags (one bit per value), values (coded), or the
tensor as it is. Every save comes with the tensor at hand, so what was coded too coarsely is coded again.

Note [Changed in place]. Hooks switch off torch's own check. A detached tensor shares the version counter of its source
even after its data is taken away, so coded tensors are guarded like kept ones.

Note [Who holds what]. Autograd owns Saved, Saved owns Stored, Stored owns the Slot in the arena: all of it dies with
the graph. Nothing here holds the tensor that pack was given, only detached ones: a saved result would close a cycle.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from slimgrad.codecs import Codec
from slimgrad.coder import CPU, Coder, layout_of
from slimgrad.errors import ChangedInPlace
from slimgrad.origins import PLAIN_TYPES
from slimgrad.policy import Plan, RoleBound, stricter
from slimgrad.roles import EXACT, Flag, Need, Role, merged, with_flags, with_zeros
from slimgrad.storage import Buffers
from slimgrad.tiers import AnySlot, Form, eps_of, restored
from slimgrad.view_bounds import covers, own_eps

NOTHING = torch.empty(0, device=CPU)
SAME = 1 - 1e-6  # bounds that differ by rounding
NOTE = "_slimgrad_stored"  # attribute of a storage; Note [One storage, one Stored]


@dataclass(slots=True, eq=False)
class Part:
    """One coded form of a whole storage."""

    codec: Codec
    slot: AnySlot
    plan: Plan
    coder: Coder | None = None  # that wrote it, if one did
    edges: torch.Tensor | None = None  # by channel, that no bin of the code crosses


class Stored:
    """Everything kept of one storage at one version; see the notes above."""

    __slots__ = (
        "__weakref__", "bound", "decoded", "dtype", "flag", "flags", "guard", "held", "is_sparse", "kept", "n_reads",
        "n_saves", "name", "nbytes", "probe", "role", "root", "shelf", "site", "values", "version",
    )  # fmt: skip

    name: str  # of the role, in reports
    shelf: object  # on which it was put
    role: Role | None  # what its savers need of the values, merged
    bound: RoleBound | None  # under which the values were coded
    flag: Flag | None
    flags: Part | None
    values: Part | None
    kept: torch.Tensor | None  # some view of the storage as it is
    guard: torch.Tensor | None
    decoded: tuple[Part, weakref.ref[torch.UntypedStorage]] | None
    held: tuple[Part, torch.Tensor, int] | None  # what was decoded last, and its version, while readers may follow
    probe: Any  # what a measurement notes of it; see measure.py

    def __init__(self, tensor: torch.Tensor, storage: torch.UntypedStorage, site: tuple[str, int]) -> None:
        self.name, self.is_sparse, self.n_saves, self.n_reads = "", False, 0, 0
        self.shelf = self.role = self.bound = self.flag = self.flags = self.values = None
        self.kept = self.guard = self.decoded = self.held = self.probe = None
        self.dtype = tensor.dtype
        self.nbytes = storage.nbytes()
        self.version = tensor._version
        self.root = weakref.ref(tensor if tensor._base is None else tensor._base) if self.version else None
        self.site = site  # where it was saved first: path of the module, number of the save
        setattr(storage, NOTE, weakref.ref(self))

    @property
    def path(self) -> str:
        return self.site[0]

    @property
    def origin(self) -> Stored:
        """The one whose code the values come from; see derived.py."""
        return self if self.values is None else getattr(self.values.slot, "stored", self)

    @property
    def is_derived(self) -> bool:
        return self.origin is not self

    def matches(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Return whether the tensor's values are those stored, and not a later version or another dtype of them."""
        if tensor.dtype != self.dtype or storage.nbytes() != self.nbytes:
            return False
        if self.has_given(storage):
            return tensor._version == 0
        if tensor._version != self.version:
            return False
        return self.root is None or self.root() is (tensor if tensor._base is None else tensor._base)

    def has_given(self, storage: torch.UntypedStorage) -> bool:
        """Return whether this is memory that unpack handed out: a second-order graph saves what backward reads."""
        return self.decoded is not None and self.decoded[1]() is storage

    @property
    def gave_flags(self) -> bool:
        return self.decoded is not None and self.decoded[0] is self.flags

    @property
    def is_exact(self) -> bool:
        """Whether every bit can be restored."""
        return self.kept is not None or (self.values is not None and self.values.codec.is_lossless)

    @property
    def form(self) -> Form:
        """What is coded: the whole values in the storage, at whose end some bytes may be left over."""
        return Form(self.nbytes - self.nbytes % self.dtype.itemsize, self.dtype)

    @property
    def nbytes_held(self) -> int:
        """Bytes that stay alive because of this."""
        if self.kept is not None:
            return self.nbytes
        return sum(part.slot.nbytes for part in (self.flags, self.values) if part is not None)

    def serves(self, role: Role) -> bool:
        """Return whether this role is served whatever the bound is."""
        if role.need is Need.SIGN:
            if self.values is not None and self.values.plan.keeps_sign and role.flag is not None and role.flag.is_sign:
                return True
            return self.is_exact or (self.flag == role.flag and (self.flags or self.values) is not None)
        return role.need is Need.SHAPE or self.is_exact

    def missing(self, role: Role, bound: RoleBound, view: torch.Tensor | None = None) -> Role | None:
        """Return what has to be stored, beyond what already is, before this role is served; Note [Strictest need].

        `view` is what is saved of the storage, if it may be a part.
        """
        if self.serves(role):
            return None
        if role.need is Need.SIGN:
            return role if self.flag is None else EXACT  # two kinds of flags: rare, and not worth a third part
        wanted = role if self.role is None else merged(self.role, role)
        if self.is_sparse:
            wanted = with_zeros(wanted)
        is_same = self.values is not None and wanted is self.role and bound == self.bound
        return None if is_same and (view is None or not self._is_coarse_for(view, wanted, bound)) else wanted

    def _is_coarse_for(self, view: torch.Tensor, role: Role, bound: RoleBound) -> bool:
        """Return whether what is stored is too coarse for this view, whose values may be smaller; view_bounds.py."""
        part, own = self.values, bound.of(role)
        if part is None or covers(view, self.nbytes) or not own.needs_rms or self.is_derived:
            return False
        return 0 < own_eps(own, view, part.plan.axis) < SAME * eps_of(part.codec, part.slot)

    def coded_role(self, role: Role) -> Role:
        """Return the role as it is coded when flags are read as well."""
        return role if self.flag is None or role.need is Need.SIGN else with_flags(role)

    def coded_bound(self, bound: RoleBound) -> RoleBound:
        return bound if self.bound is None else stricter(self.bound, bound)

    def watch(self, source: torch.Tensor) -> None:
        """Follow the version of a detached tensor without keeping its memory; Note [Changed in place]."""
        if self.guard is None:
            source.data = NOTHING if source.is_cpu else _nothing(source.device)
            self.guard = source

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the tensor as it is; coded forms are not needed any more."""
        self.kept = self.guard = tensor
        self.flags = self.values = self.decoded = self.held = None

    def check(self, size: torch.Size) -> None:
        """Raise ChangedInPlace if the tensor has changed since it was saved."""
        if self.guard is not None and self.guard._version != self.version:
            note = f", {self.name} of {self.path or 'the model'}"
            raise changed_in_place(self.dtype, size, self.guard._version, self.version, note)

    def decode(self, part: Part, buffers: Buffers) -> torch.Tensor:
        """Return the values of a part in a pooled buffer, to be viewed as they were saved."""
        if part.coder is not None and part is self.values and self.is_derived:
            return part.coder.decode(part.slot, buffers)  # pyright: ignore[reportArgumentType]
        return restored(part.codec, part.slot, self.form, buffers)

    def note_decoded(self, part: Part, values: torch.Tensor) -> None:
        """Remember decoded values, weakly: somebody may save them again."""
        storage = values.untyped_storage()
        setattr(storage, NOTE, weakref.ref(self))
        self.decoded = (part, weakref.ref(storage))


class Kept:
    """A tensor that stays as it is."""

    __slots__ = ("__weakref__", "shelf", "stored", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, stored: Stored | None = None) -> None:
        self.shelf: object = None  # of the session that needs every bit of it, and knows nobody else who keeps it
        self.tensor = tensor if tensor.is_leaf else tensor.detach()
        self.version = tensor._version
        self.stored = stored  # lives as long as one of its savers

    def restore(self) -> torch.Tensor:
        tensor = self.tensor
        if tensor._version != self.version:
            raise changed_in_place(tensor.dtype, tensor.shape, tensor._version, self.version)
        return tensor


class Passed:
    """A tensor in the care of other hooks."""

    __slots__ = ("packed", "unpack")

    def __init__(self, tensor: torch.Tensor, hooks: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
        pack, self.unpack = hooks
        self.packed = pack(tensor)

    def restore(self) -> torch.Tensor:
        return self.unpack(self.packed)


class Saved:
    """One save of a Stored."""

    __slots__ = ("layout", "stored", "wants_flags")

    def __init__(self, stored: Stored, tensor: torch.Tensor, wants_flags: bool) -> None:
        self.stored = stored
        self.layout = layout_of(tensor)
        self.wants_flags = wants_flags
        stored.n_saves += 1

    @property
    def size(self) -> torch.Size:
        return self.layout[0]

    @property
    def part(self) -> Part | None:
        """Return which coded form to read; None when the tensor was kept after all."""
        stored = self.stored
        return stored.flags if self.wants_flags and stored.flags is not None else stored.values

    def view_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the tensor as it was saved."""
        return values.as_strided(*self.layout)


class Shaped:
    """Size and layout of a tensor whose values nobody reads."""

    __slots__ = ("is_expanded", "size", "stored", "stride")

    def __init__(self, stored: Stored, tensor: torch.Tensor, in_memory: bool = False) -> None:
        self.stored = stored
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.is_expanded = tensor.is_contiguous() and not (in_memory and tensor.numel())

    def restore_in(self, buffers: Buffers) -> torch.Tensor:
        """Return a tensor of this size and layout with undefined values."""
        self.stored.check(self.size)
        device = None if self.stored.guard is None else self.stored.guard.device
        if self.is_expanded:
            return torch.zeros((), dtype=self.stored.dtype, device=device).expand(self.size)
        # Functions choose the layout of their gradient by that of their input: only real memory has channels_last.
        if device is not None and device.type != "cpu":
            return torch.empty_strided(self.size, self.stride, dtype=self.stored.dtype, device=device)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        buffer = buffers.take(extent * self.stored.dtype.itemsize).view(self.stored.dtype)
        return buffer.as_strided(self.size, self.stride)


class Rebuilt:
    """A view of a copy of a leaf in another dtype. The leaf stays alive anyway: autograd's graph ends in it."""

    __slots__ = (
        "__weakref__", "copy", "copy_size", "copy_stride", "dtype", "leaf", "offset", "size", "stride", "version",
    )  # fmt: skip

    def __init__(self, tensor: torch.Tensor, leaf: torch.Tensor) -> None:
        copy = tensor if tensor._base is None else tensor._base
        self.dtype = tensor.dtype
        self.size, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        self.copy_size, self.copy_stride = copy.shape, copy.stride()
        self.leaf = leaf.detach()
        self.version = leaf._version
        self.copy: torch.Tensor | None = None

    def make_copy(self) -> torch.Tensor:
        """Return the copy that autocast made."""
        if self.leaf._version != self.version:
            note = "; slimgrad makes autocast's copy of it again instead of keeping it"
            raise changed_in_place(self.leaf.dtype, self.leaf.shape, self.leaf._version, self.version, note)
        copy = torch.empty_strided(self.copy_size, self.copy_stride, dtype=self.dtype, device=self.leaf.device)
        return copy.copy_(self.leaf)

    def keep_copy(self) -> None:
        """Make the copy now, because the leaf is about to change; if it has, that is for whoever reads the copy."""
        if self.copy is None and self.leaf._version == self.version:
            self.copy = self.make_copy()

    def restore(self) -> torch.Tensor:
        copy = self.make_copy() if self.copy is None else self.copy
        return copy.as_strided(self.size, self.stride, self.offset)


Packed = tuple[torch.Tensor, int] | Kept | Passed | Saved | Shaped | Rebuilt


@functools.lru_cache
def _nothing(device: torch.device) -> torch.Tensor:
    return torch.empty(0, device=device)


def versioned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that has the version of the given one, now and later, and none of its memory."""
    guard = tensor.detach()
    guard.data = _nothing(tensor.device)
    return guard


def plain_storage(tensor: torch.Tensor, min_bytes: int) -> torch.UntypedStorage | None:
    """Return the tensor's memory if that is plain, and enough: an expanded tensor has less than its size."""
    if (
        type(tensor) not in PLAIN_TYPES
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_neg()
        or tensor.is_conj()
    ):
        return None
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # sparse layouts and functorch's wrappers have no storage
        return None
    return storage if storage.nbytes() >= min_bytes else None


def find(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Stored | Kept | None:
    """Return what keeps the tensor's storage: the Stored of its version, or a Kept, which has all versions."""
    note = getattr(storage, NOTE, None)
    found = None if note is None else note()
    return found if found is None or isinstance(found, Kept) or found.matches(tensor, storage) else None


def changed_in_place(dtype: torch.dtype, size: torch.Size, found: int, expected: int, note: str = "") -> ChangedInPlace:
    """Return the error for a saved tensor that is at another version now."""
    return ChangedInPlace(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{dtype} {list(size)}{note}] is at version {found}; expected version {expected} instead. "
        "Hint: clone() the tensor before changing it, or change it after backward()"
    )
