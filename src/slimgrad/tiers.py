"""Where the shelf's bytes go when a plan says so: to disk, to host memory, or into code beside training.

    tiers.takes(plan, nbytes)              whether this one leaves: plans name a tier, a policy may send only a share
    tiers.move(slot, plan)                 -> what owns the bytes from now on
    tiers.later(encode, original)          -> a Deferred: coded by the worker
    restored(codec, slot, ...)             the values, wherever the bytes are

Note [Share]. With fraction f, the tensors that forward saves first leave, until they are f of the bytes that the last
step offered: they rest longest. The first step sends all of them, since memory has to hold from the very first step.

Note [Coded beside compute]. A Deferred holds the original until the worker has coded it, as FreeLunch does; the
worker's queue bounds how many bytes wait. Who needs it earlier codes it at once, so what is restored never depends on
who was faster. The original may change in place meanwhile: that moves its version, which is checked when it is read.

Note [Host memory of a CPU] is where the arena is already: there the host tier codes, or copies, and moves nothing.
Tensors of an accelerator go to pinned memory as they are, since no code runs on a device yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch

from slimgrad.codecs import Codec, Raw
from slimgrad.coder import CPU, POOLED_FROM
from slimgrad.errors import CorruptPayload
from slimgrad.policy import DISK, HOST, Plan
from slimgrad.storage import Arena, Buffers, Disk, Host, Hosted, Slot, Spilled, Tier, Worker
from slimgrad.storage.disk import is_in_memory

NO_HOST = "Swap(tier='host') moves nothing on a machine without an accelerator: host memory is where tensors are"
MEMORY_DISK = "Swap(tier='disk') writes to {}, which is memory (tmpfs); choose a directory on a disk"

Owner = Slot | Spilled | Hosted
Encode = Callable[[], "tuple[Codec, Owner] | None"]  # which code, and the bytes; None: no code makes it smaller


class Deferred:
    """Bytes that will be coded; see Note [Coded beside compute]."""

    __slots__ = ("__weakref__", "_encode", "_lock", "_settled", "original")

    def __init__(self, encode: Encode, original: torch.Tensor) -> None:
        self._encode: Encode | None = encode
        self._lock = threading.Lock()
        self._settled: tuple[Codec, Owner] | None = None
        self.original: torch.Tensor | None = original  # flat; stays if no code makes it smaller

    def settle(self) -> tuple[Codec, Owner] | None:
        """Return code and bytes, coding them now if nobody has; None: the original is what there is."""
        with self._lock:
            if self._encode is not None:
                self._settled = self._encode()
                self._encode = None
                if self._settled is not None:
                    self.original = None
            return self._settled

    @property
    def nbytes(self) -> int:
        settled = self.settle()
        if settled is not None:
            return settled[1].nbytes
        assert self.original is not None
        return self.original.nbytes


AnySlot = Owner | Deferred


class Tiers:
    """The tiers of one session. Nothing is opened and no thread is started before a plan asks for it."""

    def __init__(self, arena: Arena, buffers: Buffers, policy: object = None) -> None:
        self._arena, self._buffers = arena, buffers
        policy = getattr(policy, "other", policy)  # what Recompute does not compute again
        self.worker = Worker()
        self._directory = getattr(policy, "directory", None)
        self._fraction = getattr(policy, "fraction", 1.0)
        self._disk: Tier | None = None
        self._host: Host | None = None
        self._names: set[str] = set()
        self._offered = 0  # bytes in this step
        self._last_offered = 0
        if getattr(policy, "tier", None) == DISK:
            self.disk()  # a directory that will not do is refused at once

    def disk(self) -> Tier:
        """Return the disk tier, opened when first asked for."""
        if self._disk is None:
            self._disk = Tier(Disk(self._directory), self._buffers, self.worker)
        return self._disk

    def takes(self, plan: Plan, nbytes: int) -> bool:
        """Return whether a tensor of this size leaves; see Note [Share]."""
        if not plan.tier:
            return False
        before, self._offered = self._offered, self._offered + nbytes
        return self._fraction >= 1.0 or not self._last_offered or before < self._fraction * self._last_offered

    def move(self, source: Slot | torch.Tensor, plan: Plan) -> Owner:
        """Return what owns the bytes of a slot or, uncoded, of a flat tensor from now on."""
        self._names.add(plan.tier)
        if plan.tier == DISK:
            return self.disk().spill(source if isinstance(source, Slot) else source.view(torch.uint8))
        if isinstance(source, Slot):
            return source
        if not source.is_cpu:
            self._host = self._host or Host()
            return self._host.spill(source.view(torch.uint8))
        payload = Raw().encode(source, None, None, self._arena.room)
        return self._arena.keep(payload, payload.numel())

    def later(self, encode: Encode, original: torch.Tensor) -> Deferred:
        """Return bytes that the worker will code; waits while it has too much to do."""
        deferred = Deferred(encode, original)
        if not self.worker.submit(deferred, _settle, original.nbytes):
            deferred.settle()
        return deferred

    def begin_step(self) -> None:
        """Learn from the step that has ended."""
        self._last_offered, self._offered = self._offered or self._last_offered, 0
        for tier in (self._disk, self._host):
            if tier is not None:
                tier.begin_step()

    def sizes(self) -> dict[str, int]:
        """Return what a report should list beside the pools."""
        sizes = {} if self._disk is None else {"on disk at most": self._disk.disk.nbytes_peak}
        return sizes if self._host is None else {**sizes, "pinned host memory at most": self._host.nbytes_peak}

    def remarks(self) -> list[str]:
        """Return what a report should say in words."""
        said = [NO_HOST] if HOST in self._names and not torch.accelerator.is_available() else []
        if self._disk is not None:
            if is_in_memory(self._disk.disk.directory):
                said.append(MEMORY_DISK.format(self._disk.disk.directory))
            if self._disk.problem:
                said.append(f"activations stayed in memory that should have been swapped. {self._disk.problem}")
        return said

    def close(self) -> None:
        """Let go of file and thread; bytes that somebody still owns stay readable."""
        self.worker.close()
        for tier in (self._disk, self._host):
            if tier is not None:
                tier.close()


def _settle(deferred: Deferred) -> None:
    deferred.settle()


class Form(NamedTuple):
    """What the values of a storage look like in memory."""

    nbytes: int
    dtype: torch.dtype


def restored(codec: Codec, slot: AnySlot, form: Form, buffers: Buffers) -> torch.Tensor:
    """Return the values, one-dimensional, in memory of their own."""
    if isinstance(slot, Deferred):
        settled = slot.settle()
        if settled is None:
            assert slot.original is not None
            return buffers.take(form.nbytes).view(form.dtype).copy_(slot.original)
        codec, slot = settled
    if isinstance(slot, Hosted):
        return slot.take().view(form.dtype)
    if isinstance(slot, Spilled) and isinstance(codec, Raw):
        own = slot.take()
        if own is not None:  # read into fresh memory: no need to copy
            if own.nbytes != form.nbytes:
                raise CorruptPayload(f"raw: expected {form.nbytes} bytes, got {own.nbytes}")
            return own.view(form.dtype)
    if form.nbytes < POOLED_FROM:
        values = torch.empty(form.nbytes // form.dtype.itemsize, dtype=form.dtype, device=CPU)
    else:
        values = buffers.take(form.nbytes).view(form.dtype)
    payload = slot.payload  # held until the decoder is through: a Spilled may leave memory meanwhile
    codec.decode(payload, values)
    return values


def eps_of(codec: Codec, slot: AnySlot) -> float:
    """Return the largest error that the values can have, as their bytes say."""
    if isinstance(slot, Deferred):
        settled = slot.settle()
        if settled is None:
            return 0.0
        codec, slot = settled
    if isinstance(slot, Hosted):
        return 0.0
    payload = slot.peek() if isinstance(slot, Spilled) else slot.payload
    return codec.eps_of(payload)
