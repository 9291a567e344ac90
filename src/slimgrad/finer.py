"""What a code has left out of a tensor, coded too, where the original beside its code would take too much memory.

    finer = Finer.of(stored, tensor)     None where no code makes it small
    finer.values(is_for_more)            the original, or nearly, in memory of its own
    finer.take_coded()                   what its code alone gives, if that was decoded for the last values; once

What is left out lies evenly between half a step down and half a step up, whatever was coded, so three values of it are
enough: they fit in 1.7 bits per value. Errors of gradients made of them have the energy of the true ones: of all sites
together within a tenth, of single layers within a quarter mostly (docs/bounds.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from slimgrad.bounds.fixed import Relative
from slimgrad.codecs import Nested
from slimgrad.coder import channels_of
from slimgrad.saved import Part, Stored
from slimgrad.storage import Slot
from slimgrad.tiers import Form, restored

if TYPE_CHECKING:
    from slimgrad.shelf import Shelf

LEFT_OUT = Relative(0.61)  # of its RMS: 0 and one value on either side, so that values spread evenly keep their energy
CODE = Nested(centred=True, sampled=True)


class Finer:
    """A tensor's code and what that has left out. It knows nothing of the Stored: their lives end together."""

    __slots__ = ("_coded", "_form", "_held", "_part", "_shelf", "_slot")

    def __init__(self, part: Part, slot: Slot, form: Form, shelf: Shelf) -> None:
        self._part, self._slot, self._form, self._shelf = part, slot, form, shelf
        self._held: torch.Tensor | None = None
        self._coded: torch.Tensor | None = None

    @classmethod
    def of(cls, stored: Stored, tensor: torch.Tensor) -> Finer | None:
        """Return what is stored of this tensor and what is not."""
        part, shelf = stored.values, cast("Shelf", stored.shelf)
        if part is None or part.plan.bound is None:
            return None
        left_out = restored(part.codec, part.slot, stored.form, shelf.buffers)
        flat = tensor.detach().as_strided((left_out.numel(),), (1,), 0)
        torch.sub(flat, left_out, out=left_out)
        channels = channels_of(tensor, flat.numel(), part.plan)
        payload = CODE.encode(left_out, LEFT_OUT, channels, shelf.arena.room)
        if payload is None or payload.numel() >= stored.nbytes:  # values that are no numbers, say
            return None
        return cls(part, shelf.arena.keep(payload, payload.numel()), stored.form, shelf)

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def values(self, is_for_more: bool = False) -> torch.Tensor:
        """Return the values, one-dimensional, and hold them if another node will read them."""
        values, self._held = self._held, None
        if values is None:
            self._coded = restored(self._part.codec, self._part.slot, self._form, self._shelf.buffers)
            values = restored(CODE, self._slot, self._form, self._shelf.buffers).add_(self._coded)
        if is_for_more:
            self._held = values
        return values

    def take_coded(self) -> tuple[Part, torch.Tensor, int] | None:
        """Return the coded values with their part and version, as a Stored holds them for its next reader."""
        coded, self._coded = self._coded, None
        return None if coded is None else (self._part, coded, coded._version)
