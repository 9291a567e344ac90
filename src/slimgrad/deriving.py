"""What is derived in a forward that is recorded: the part of a Recorder that speaks with derived.py.

begin(call, path)          a function of derived.FUNCTIONS is about to run ...
defers(role, coder)        ... and saves its input: a batch norm's is coded when the norm has run
packed(tensor, ...)        ... or something saves a tensor that can be derived
end(result)                it has returned, or raised: None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from slimgrad import derived
from slimgrad.attached import Attached
from slimgrad.bounds import Exact
from slimgrad.coder import Coder
from slimgrad.consumers import BATCH_NORM, Call
from slimgrad.roles import Need, Role
from slimgrad.saved import Saved, Stored, find
from slimgrad.shelf import Shelf

if TYPE_CHECKING:
    from slimgrad.session import Session


class Deriver:
    """The calls of one thread whose results may be derived, one at a time."""

    def __init__(self, attached: Attached, shelf: Shelf, reads_own: Callable[[], bool]) -> None:
        self._attached, self._shelf = attached, shelf
        self._reads_own = reads_own  # whether what is saved now comes back through hooks of our session alone
        self._making: derived.Making | None = None
        self._put: Callable[[torch.Tensor | None], None] | None = None  # codes a batch norm's input, given edges
        self._deferred: Stored | None = None

    @classmethod
    def of(cls, session: Session, reads_own: Callable[[], bool]) -> Deriver | None:
        """Return a deriver for a thread of the session; None where neither policy nor bounds want one."""
        attached = session.attached
        wish = any(getattr(bound, "derives", False) for bound in (attached.bound, *attached.rules.values()))
        may = getattr(session.policy, "derives", False) and session.planned is None
        return cls(attached, session.shelf, reads_own) if wish and may else None

    def begin(self, call: Call | None, path: str) -> None:
        """Begin a call; what it saves is at this path."""
        self.end(None)
        bound = self._attached.bound_of(path)
        if getattr(bound, "derives", False) or isinstance(bound, Exact):
            self._making = derived.begin(call, bound)

    def run(self, call: Call, path: str) -> Any:
        """Run a function of derived.FUNCTIONS and return its result."""
        result = None
        self.begin(call, path)
        try:
            result = call.function(*call.args, **(call.kwargs or {}))
        finally:
            self.end(result)
        return result

    def defers(self, role: Role, coder: Coder | None) -> bool:
        """Return whether this is to be coded later, by what `later` is then given."""
        making = self._making
        return making is not None and making.is_batch_norm and role is BATCH_NORM and coder is not None

    def later(self, stored: Stored, put: Callable[[torch.Tensor | None], None]) -> None:
        self._deferred, self._put = stored, put

    def end(self, result: Any) -> None:
        """End the call: code what waits for it, and note how its result is made."""
        making, put, stored = self._making, self._put, self._deferred
        self._making = self._put = self._deferred = None
        if making is None:
            return
        is_read = making.is_batch_norm and self._reads_own()  # what others have packed is not ours to unpack
        affine = making.affine(result) if is_read else None
        if put is not None:
            put(None if affine is None else affine.edges)
        if result is not None:
            source = making.call.args[0]
            found = stored if stored is not None else find(source, source.untyped_storage())
            is_own = isinstance(found, Stored) and found.shelf is self._shelf and not found.is_derived
            making.note(result, found if is_own and _fits(making, found) else None, affine)  # pyright: ignore

    def packed(
        self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role, path: str, site: Callable[[], Any]
    ) -> Saved | None:
        """Return what autograd keeps of a tensor that can be derived; `site` names it where it is a new one."""
        derivation = derived.derivation_of(tensor)
        if derivation is None and self._making is not None and role.need is Need.SIGN:
            derivation = self._making.clipped(tensor)
        if derivation is None or not derivation.may_be_read_under(self._attached.bound_of(path)):
            return None
        if not derivation.serves(role):
            return None
        found = find(tensor, storage)
        if found is not None and not isinstance(found, Stored):
            return None
        is_sign = role.need is Need.SIGN
        if is_sign and found is not None and found.flag not in (None, role.flag):
            return None  # flags of another kind are stored
        if found is not None and found.is_derived:
            self._shelf.ledger.record_repeat(path, role.name, storage.nbytes())
        elif found is None or (found.values is None and found.kept is None):
            found = Stored(tensor, storage, site()) if found is None else found
            self._shelf.put_derived(found, tensor, role, derivation.part())
        else:
            return None  # it is stored already
        if is_sign:
            found.flag = role.flag  # whatever replaces these values has to keep signs
        return Saved(found, tensor, is_sign)


def _fits(making: derived.Making, stored: Stored) -> bool:
    """Return whether the input of a norm is stored as norms need it, and not for somebody else alone."""
    role = stored.role
    return not making.is_norm or stored.kept is not None or (role is not None and bool(role.row or role.is_centred))
