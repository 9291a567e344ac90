"""A finer code of a tensor, with which its code is compared where the original would take too much memory.

    finer = Finer.of(stored, tensor)     None where no code makes it small
    finer.values()                       the values, in memory of their own

Steps are FINER times smaller, so that squared errors are found up to 1 / FINER^2 of what they are, and it takes some
three bits per value more than the code itself: of ten tensors this is less than the original of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from slimgrad.bounds.fixed import Absolute, Relative
from slimgrad.codecs import Codec
from slimgrad.coder import Coder, channels_of
from slimgrad.saved import Stored
from slimgrad.storage import Buffers, Slot
from slimgrad.tiers import Form, restored

if TYPE_CHECKING:
    from slimgrad.shelf import Shelf

FINER = 8.0


class Finer:
    """The finer code. It knows nothing of the Stored to which it belongs: their lives end together."""

    __slots__ = ("_buffers", "_codec", "_form", "_slot")

    def __init__(self, codec: Codec, slot: Slot, form: Form, buffers: Buffers) -> None:
        self._codec, self._slot, self._form, self._buffers = codec, slot, form, buffers

    @classmethod
    def of(cls, stored: Stored, tensor: torch.Tensor) -> Finer | None:
        """Return the finer code of what is stored of this tensor."""
        part, shelf = stored.values, cast("Shelf", stored.shelf)
        if part is None or part.plan.bound is None:
            return None
        bound = part.plan.bound
        eps = bound.eps(1.0) / FINER
        plan = part.plan._replace(bound=Relative(eps) if bound.needs_rms else Absolute(eps), tier="", overlaps=False)
        coder = Coder.of(plan, tensor, stored.nbytes)
        if coder is not None:
            slot = coder.encode(tensor, shelf.arena, part.edges)
        else:
            flat = tensor.as_strided((stored.form.nbytes // tensor.element_size(),), (1,), 0)
            payload = part.codec.encode(flat, plan.bound, channels_of(tensor, flat.numel(), plan), shelf.arena.room)
            slot = None if payload is None else shelf.arena.keep(payload, payload.numel())
        return None if slot is None else cls(part.codec, slot, stored.form, shelf.buffers)

    def values(self) -> torch.Tensor:
        """Return the values, one-dimensional."""
        return restored(self._codec, self._slot, self._form, self._buffers)
