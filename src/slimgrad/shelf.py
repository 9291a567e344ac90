"""Where coded tensors go and come from: codecs on one side, arena and buffers on the other, the ledger beside them.

    shelf.put(stored, tensor, role, plan)     code the tensor's whole storage, or keep it where coding does not pay
    shelf.fetch(saved) -> Tensor              the tensor as it was saved

Whole storages are coded in memory order, whatever views of them are saved; restored views are cut out of the decoded
values, so strides are exact. What a relative bound means then is in view_bounds.py. Where the recorder has a Coder for
the site, that does the same without a detour.

Note [Decoded once]. A convolution's backward and that of the ReLU before it read the same values one after the other.
What was decoded is therefore held until another tensor is decoded, but only while more reads of it can follow: held any
longer, it would add to the peak, which lies in backward. A reader that changed it in place has moved its version:
the next one gets its own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import is_grad_enabled

from slimgrad.codecs import Channels, Codec, Mask, Raw
from slimgrad.coder import Coder, channels_of
from slimgrad.consumers import Call
from slimgrad.ledger import Ledger
from slimgrad.policy import DISK, Plan
from slimgrad.roles import Need, Role
from slimgrad.saved import NOTE, NOTHING, Kept, Part, Saved, Stored
from slimgrad.storage import Arena, Buffers, Freed, Heap, Slot
from slimgrad.tiers import Deferred, Owner, Tiers
from slimgrad.view_bounds import own_plan

NO_GAIN = "no code makes it smaller"
SAMPLE_EVERY = 97  # coded tensors between two whose error is measured; prime, so that every layer has its turn
SAMPLE_VALUES = 1 << 16  # of such a tensor that are compared
SHAPE_CODEC, REBUILD_CODEC = "shape", "rebuild"  # what the ledger calls it when nothing is stored
REBUILT_NOTE = "_slimgrad_rebuilt"  # attribute of a storage that was counted
MASK, RAW = Mask(), Raw()
SIGN = Need.SIGN  # a plain global: looking a member up in its Enum takes longer
T = TypeVar("T")


class Shelf:
    """Arena, buffers and ledger of one session."""

    def __init__(self, ledger: Ledger, policy: object = None) -> None:
        heap = Heap()  # shared, so that buffers reuse the pages that coded bytes have left
        self.arena = Arena(heap)
        self.buffers = Buffers(heap)
        self.tiers = Tiers(self.arena, self.buffers, policy)
        freed = Freed(getattr(policy, "give_back", None))
        self.freed = freed if freed.every else None  # mostly nobody wants it
        self.ledger = ledger
        self._n_coded = 0
        self._last: weakref.ref[Stored] | None = None  # whose values are held; Note [Decoded once]

    def put(
        self,
        stored: Stored,
        tensor: torch.Tensor,
        role: Role,
        plan: Plan,
        call: Call | None = None,
        coder: Coder | None = None,
        edges: torch.Tensor | None = None,
    ) -> None:
        """Store what `role` needs as the plan says; a coder is given only where it is values, and nothing is stored."""
        if coder is None:
            return self._put_as_tensor(stored, tensor, role, plan, call)
        start = perf_counter()
        codec, source = plan.codec, tensor.detach()
        stored.shelf = self
        slot = coder.encode(source, self.arena, edges)
        if slot is None or codec is None:
            return self._keep(stored, source, role, plan, call)
        self._n_coded += 1
        if self._n_coded % SAMPLE_EVERY == 1 and not codec.is_lossless:
            self._sample(stored, flattened(stored, source), codec, slot, role)
        stored.name, stored.values = role.name, Part(codec, slot, plan, coder, edges)
        source.data = NOTHING  # what Stored.watch() does
        stored.guard = source
        seconds = perf_counter() - start
        self.ledger.record_pack(stored.site[0], role.name, codec.name, coder.nbytes, slot.nbytes, seconds)
        if self.freed is not None:
            self.freed.passed(coder.nbytes)
        return None

    def _put_as_tensor(self, stored: Stored, tensor: torch.Tensor, role: Role, plan: Plan, call: Call | None) -> None:
        """Do the same for every kind of need; the ledger forgets what this replaces."""
        start = perf_counter()
        self._forget(stored)
        stored.shelf = self
        source = tensor.detach()
        part = self._part(stored, source, role, own_plan(plan, source, stored.nbytes))
        if part is None:
            return self._keep(stored, source, role, plan, call)
        stored.watch(source)
        if role.need is SIGN:
            stored.name = stored.name if stored.values is not None else role.name
            stored.flag, stored.flags, stored.is_sparse = role.flag, part, role.is_sparse
        else:
            stored.name, stored.values = role.name, part
            if plan.keeps_sign and (stored.flag is None or stored.flag.is_sign or part.codec.is_lossless):
                stored.flags = None
        if not isinstance(part.slot, Deferred):
            self._note(stored, perf_counter() - start)
        if self.freed is not None:
            self.freed.passed(stored.nbytes)
        return None

    def put_shape(self, stored: Stored, tensor: torch.Tensor, role: Role) -> None:
        """Note a tensor of which nothing is stored."""
        stored.shelf = self
        stored.watch(tensor.detach())
        stored.name = role.name
        self.ledger.record_pack(stored.path, role.name, SHAPE_CODEC, stored.nbytes, 0, 0.0)

    def put_derived(self, stored: Stored, tensor: torch.Tensor, role: Role, part: Part) -> None:
        """Note a tensor that is made from what is stored of another; see derived.py."""
        self._forget(stored)
        stored.shelf, stored.name, stored.values = self, role.name, part
        stored.watch(tensor.detach())
        self._note(stored, 0.0)

    def put_rebuilt(
        self, path: str, storage: torch.UntypedStorage, role: Role, site: tuple[str, int] | None = None
    ) -> None:
        """Note a tensor that is made again instead of stored, under the site that first saved it."""
        if hasattr(storage, REBUILT_NOTE) or hasattr(storage, NOTE):  # also where only its signs are stored
            self.ledger.record_repeat(path, role.name, storage.nbytes())
        else:
            setattr(storage, REBUILT_NOTE, site)
            self.ledger.record_pack(path, role.name, REBUILD_CODEC, storage.nbytes(), 0, 0.0)

    def rebuilt_site(self, storage: torch.UntypedStorage) -> tuple[str, int] | None:
        """Return the site of a tensor that is made again and of which nothing is stored."""
        return getattr(storage, REBUILT_NOTE, None)

    def fetch(self, saved: Saved) -> torch.Tensor:
        """Return the tensor as it was saved."""
        stored = saved.stored
        guard = stored.guard
        if guard is not None and guard._version != stored.version:
            stored.check(saved.layout[0])
        if stored.kept is not None:
            return saved.view_of(stored.kept)
        stored.n_reads += 1
        if self._last is not None:
            self._release_last(stored)
        part = stored.values if stored.flags is None else saved.part
        assert part is not None
        held = stored.held
        if held is not None and held[0] is part and held[1]._version == held[2]:
            values = saved.view_of(held[1])
        else:
            values = self._decode(stored, part, saved)
        if stored.n_reads < stored.n_saves:
            stored.held, self._last = (part, values, values._version), weakref.ref(stored)
        else:
            stored.held = None
        return values

    def close(self) -> None:
        """Give pooled memory back; what the graph still needs goes with the graph."""
        self.tiers.close()
        self.arena.close()  # and so the buffers

    def end_step(self) -> None:
        """Count one step, and give back what the last ones did not use."""
        self.ledger.next_step()
        self.tiers.begin_step()
        self.arena.trim()  # and so the buffers, which lie in the same heap

    def nbytes_kept(self) -> int:
        """Return the bytes that graphs keep alive right now. Slow: it asks the garbage collector who keeps what."""
        storages = set()
        for keeper in gc.get_objects():
            if type(keeper) in (Stored, Kept) and keeper.shelf is self:
                tensor = keeper.kept if isinstance(keeper, Stored) else keeper.tensor
                if tensor is not None:
                    storages.add(tensor.untyped_storage())
        return self.arena.nbytes_live + sum(storage.nbytes() for storage in storages)

    def _part(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan) -> Part | None:
        """Return one coded form; None where the tensor had better stay as it is."""
        if plan.codec is None:
            return None
        is_later = plan.overlaps and stored.flags is None and stored.values is None
        return (self._encode_later if is_later else self._encode)(stored, source, role, plan)

    def _keep(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan, call: Call | None) -> None:
        stored.keep(source)
        detail = "" if call is None else call.name
        self.ledger.record_kept(stored.path, role.name, stored.nbytes, plan.reason or NO_GAIN, detail)

    def _decode(self, stored: Stored, part: Part, saved: Saved) -> torch.Tensor:
        """Return the tensor as it was saved, decoded anew."""
        start = perf_counter()
        coder = part.coder
        if coder is not None and coder.layout == saved.layout:
            values = coder.decode(part.slot, self.buffers)  # pyright: ignore[reportArgumentType]  coders make Slots
        else:
            values = saved.view_of(outside_autocast(stored.decode, part, self.buffers))
        if stored.n_saves > 1 or is_grad_enabled():
            stored.note_decoded(part, values)
        self.ledger.record_unpack(stored.site[0], stored.name, perf_counter() - start)
        if self.freed is not None:
            self.freed.passed(stored.nbytes)
        return values

    def _encode(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan) -> Part | None:
        flat = flattened(stored, source)
        channels = channels_of(source, flat.numel(), plan)
        is_leaving = self.tiers.takes(plan, stored.nbytes)
        found = self._code(stored, flat, channels, role, plan, is_leaving)
        return None if found is None else Part(*found, plan)

    def _encode_later(self, stored: Stored, source: torch.Tensor, role: Role, plan: Plan) -> Part:
        """Have the worker code it; see Note [Coded beside compute] in tiers.py."""
        assert plan.codec is not None
        flat = flattened(stored, source)
        channels = channels_of(source, flat.numel(), plan)
        is_leaving = self.tiers.takes(plan, stored.nbytes)

        def encode() -> tuple[Codec, Owner] | None:
            start = perf_counter()
            found = self._code(stored, flat, channels, role, plan, is_leaving)
            codec, nbytes = (RAW, stored.nbytes) if found is None else (found[0], found[1].nbytes)
            seconds = perf_counter() - start
            self.ledger.record_pack(stored.path, role.name, codec.name, stored.nbytes, nbytes, seconds)
            return found

        return Part(plan.codec, self.tiers.later(encode, flat), plan)

    def _code(
        self, stored: Stored, flat: torch.Tensor, channels: Channels | None, role: Role, plan: Plan, is_leaving: bool
    ) -> tuple[Codec, Owner] | None:
        """Return code and bytes, which may have left; None where the tensor had better stay as it is."""
        assert plan.codec is not None
        slot = None
        if not isinstance(plan.codec, Raw):
            slot = outside_autocast(self._coded_slot, stored, flat, channels, role, plan)
        if slot is not None:
            return plan.codec, self.tiers.move(slot, plan) if is_leaving else slot
        if is_leaving and (plan.tier == DISK or isinstance(plan.codec, Raw)):
            return RAW, self.tiers.move(flat, plan)
        return None

    def _coded_slot(
        self, stored: Stored, flat: torch.Tensor, channels: Channels | None, role: Role, plan: Plan
    ) -> Slot | None:
        codec = plan.codec
        assert codec is not None
        if role.need is SIGN:
            payload = self._encode_flags(flat, role)
        elif plan.row and channels is None:
            return None  # not the tensor that the plan was made for
        else:
            payload = codec.encode(flat, plan.bound, channels, self.arena.room)
        if payload is None:
            return None
        nbytes = payload.numel()
        if nbytes >= stored.nbytes:
            return None
        slot = self.arena.keep(payload, nbytes)
        self._n_coded += 1
        if self._n_coded % SAMPLE_EVERY == 1 and not codec.is_lossless:
            self._sample(stored, flat, codec, slot, role)
        return slot

    def _encode_flags(self, flat: torch.Tensor, role: Role) -> torch.Tensor | None:
        flag = role.flag
        assert flag is not None
        bits = flag.bits(flat, self.buffers.take(flat.numel()).view(torch.bool))
        return None if bits is None else MASK.encode_bits(bits, flag.if_set, flag.if_not, flat.dtype, self.arena.room)

    def _sample(self, stored: Stored, flat: torch.Tensor, codec: Codec, slot: Slot, role: Role) -> None:
        """Measure the worst error of one tensor, as a fraction of the bound that its payload records."""
        restored = self.buffers.take(stored.form.nbytes).view(stored.dtype)
        codec.decode(slot.payload, restored)
        eps = codec.eps_of(slot.payload)
        some = slice(None, None, 1 + flat.numel() // SAMPLE_VALUES)
        worst = float((restored[some].float() - flat[some].float()).abs_().nan_to_num_(0.0).max())
        if eps > 0:
            self.ledger.record_error(stored.path, role.name, worst / eps)

    def _release_last(self, stored: Stored) -> None:
        """Let go of the values decoded before, if they are another tensor's: first, so that their room is free."""
        last = None if self._last is None else self._last()
        if last is not stored:
            self._last = None
            if last is not None:
                last.held = None

    def _note(self, stored: Stored, seconds: float, sign: int = 1) -> None:
        """Count what is stored, or with sign=-1 take it back."""
        flags, values = stored.flags, stored.values
        part = values if values is not None else flags
        assert part is not None
        codec, held = part.codec.name, part.slot.nbytes
        if flags is not None and flags is not part:
            codec, held = f"{flags.codec.name}+{codec}", held + flags.slot.nbytes
        self.ledger.record_pack(stored.site[0], stored.name, codec, sign * stored.nbytes, sign * held, seconds, sign)

    def _forget(self, stored: Stored) -> None:
        """Forget in the ledger what was stored so far: what comes next replaces it, or comes on top and counts both."""
        if stored.guard is not None:
            owner = stored.shelf if isinstance(stored.shelf, Shelf) else self  # sessions may share a storage
            owner._take_back(stored)

    def _take_back(self, stored: Stored) -> None:
        if stored.flags is not None or stored.values is not None:
            self._note(stored, 0.0, -1)
        elif stored.guard is not None:  # nothing was needed of it so far
            self.ledger.record_pack(stored.path, stored.name, SHAPE_CODEC, -stored.nbytes, 0, 0.0, -1)


def flattened(stored: Stored, source: torch.Tensor) -> torch.Tensor:
    """Return the whole storage in memory order."""
    return source.as_strided((stored.nbytes // source.element_size(),), (1,), 0)


def outside_autocast(function: Callable[..., T], *args: Any) -> T:
    """Call a function while autocast is off on the CPU; cheaper than torch.autocast, which is built per device."""
    if not torch.is_autocast_enabled("cpu"):
        return function(*args)
    torch.set_autocast_enabled("cpu", False)
    try:
        return function(*args)
    finally:
        torch.set_autocast_enabled("cpu", True)
