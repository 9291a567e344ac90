"""A plan made ready for the storages that one site saves step after step: what follows from sizes is worked out once.

    coder = Coder.of(plan, tensor, nbytes)     None: such storages are coded as tensors, see shelf.py
    coder.fits(tensor, nbytes)                 whether this one is like the first
    slot = coder.encode(tensor, arena)         None: no code makes it smaller
    values = coder.decode(slot, buffers)       in the layout of the tensor that the coder was made for

The bytes are those that the plan's codec writes. Memory goes by address from here to the kernel and back: every tensor
that is made on the way costs microseconds, and a training step saves hundreds.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import empty_strided

from slimgrad.codecs import Channels, Ready
from slimgrad.policy import Plan, RoleBound
from slimgrad.storage import Arena, Buffers, Slot
from slimgrad.view_bounds import covers

CPU = torch.device("cpu")  # said every time: there may be another default
POOLED_FROM = 1 << 17  # bytes; below, the free lists of malloc are a pool, and a faster one; above, it asks the system
# As numpy knows them; it has no bfloat16, and a tensor of these is seen as one afterwards
ARRAYS = {torch.float32: np.dtype(np.float32), torch.float16: np.dtype(np.float16), torch.bfloat16: np.dtype(np.int16)}

Layout = tuple[torch.Size, tuple[int, ...], int]  # size, stride and offset of a view


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return where a view lies in its storage."""
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


class Coder:
    """One plan for one kind of storage."""

    __slots__ = ("_array", "_has_channels", "_is_relative", "_ready", "_strides", "dtype", "layout", "nbytes")

    def __init__(
        self, ready: Ready, tensor: torch.Tensor, nbytes: int, has_channels: bool, is_relative: bool = True
    ) -> None:
        self._ready, self._has_channels, self._is_relative = ready, has_channels, is_relative
        self.nbytes, self.dtype, self.layout = nbytes, tensor.dtype, layout_of(tensor)
        self._array = ARRAYS[tensor.dtype]
        self._strides = tuple(stride * tensor.dtype.itemsize for stride in self.layout[1])

    @classmethod
    def of(cls, plan: Plan, tensor: torch.Tensor, nbytes: int) -> Coder | None:
        """Return the coder for storages like this tensor's, which has to fill its storage."""
        if plan.codec is None or plan.tier or plan.overlaps:
            return None
        has_address = tensor.untyped_storage().device == CPU  # that of a fake tensor is on "meta"
        if tensor.dtype not in ARRAYS or not has_address or not fills(tensor, nbytes):
            return None
        if plan.bound is not None and plan.bound.needs_rms and not covers(tensor, nbytes):
            return None
        n = nbytes // tensor.dtype.itemsize
        channels = channels_of(tensor, n, plan)
        if plan.row and channels is None:
            return None
        ready = plan.codec.ready(n, tensor.dtype, plan.bound, channels)
        if ready is None:
            return None
        is_relative = plan.bound is not None and plan.bound.needs_rms
        return cls(ready, tensor, nbytes, plan.axis is not None or plan.row > 0, is_relative)

    def fits(self, tensor: torch.Tensor, nbytes: int) -> bool:
        """Return whether the tensor's storage can be coded; a view of it will do where the bound is absolute."""
        if nbytes != self.nbytes or (self._is_relative and not covers(tensor, nbytes)):
            return False
        return not self._has_channels or layout_of(tensor) == self.layout

    def encode(self, tensor: torch.Tensor, arena: Arena, edges: torch.Tensor | None = None) -> Slot | None:
        """Return the coded bytes of the tensor's whole storage; `edges` by channel, see Note [Signs] in derived.py."""
        ready = self._ready
        slot = arena.reserve(ready.capacity)
        address = tensor.untyped_storage().data_ptr()
        used = ready.encode(address, slot.address, 0 if edges is None else edges.data_ptr())
        if not 0 < used < self.nbytes:
            return None
        arena.settle(slot, used)
        return slot

    def decode(self, slot: Slot, buffers: Buffers) -> torch.Tensor:
        """Return the values in memory of their own."""
        size, stride, _ = self.layout
        if self.nbytes < POOLED_FROM:
            values = empty_strided(size, stride, dtype=self.dtype, device=CPU)
        else:
            values = buffers.take_array(size, self._array, self._strides, self.nbytes)
            if self.dtype is torch.bfloat16:
                values = values.view(torch.bfloat16)
        self._ready.decode(slot.address, slot.nbytes, values.data_ptr())
        return values


class Remembered:
    """Bound and plan of a site, and the coder for storages like the last one."""

    __slots__ = ("_coder", "_nbytes", "bound", "plan")

    def __init__(self, bound: RoleBound, plan: Plan) -> None:
        self.bound, self.plan = bound, plan
        self._coder: Coder | None = None
        self._nbytes = -1  # for which a coder was last made, or there was none to make

    def coder_for(self, tensor: torch.Tensor, nbytes: int) -> Coder | None:
        """Return the coder for this tensor's storage, made anew where the last one does not fit."""
        coder = self._coder
        if coder is None and nbytes == self._nbytes:
            return None
        if coder is None or not coder.fits(tensor, nbytes):
            coder = self._coder = Coder.of(self.plan, tensor, nbytes)
            self._nbytes = nbytes
        return coder


def fills(tensor: torch.Tensor, nbytes: int) -> bool:
    """Return whether the tensor's elements span its storage of so many bytes from the first to the last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.storage_offset() == 0 and tensor.numel() > 0 and span * tensor.dtype.itemsize == nbytes


def channels_of(tensor: torch.Tensor, numel: int, plan: Plan) -> Channels | None:
    """Return where the plan's channels or rows, and neighbours, lie in the storage; None where the tensor is a part."""
    if tensor.numel() != numel:
        return None
    if plan.row:
        return Channels(numel // plan.row, plan.row) if tensor.is_contiguous() and numel % plan.row == 0 else None
    apart = max(1, tensor.stride(-1)) if tensor.dim() else 1
    if plan.axis is None or tensor.dim() <= plan.axis:
        return Channels(1, 1, apart)
    return Channels(tensor.shape[plan.axis], max(1, tensor.stride(plan.axis)), apart)
