"""What pack leaves as it is: kept, or given to other hooks around ours, and counted in bulk when the forward ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from slimgrad import ledger
from slimgrad.consumers import Call
from slimgrad.policy import NEEDED
from slimgrad.roles import UNKNOWN, Role
from slimgrad.saved import NOTE, Kept, Packed, Passed, Stored

autograd = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
Hooks = tuple[Callable[..., Any], Callable[..., Any]]  # pack and unpack


def is_top(hooks: Hooks) -> bool:
    """Return whether these saved-tensor hooks are the innermost."""
    top = autograd._top_saved_tensors_default_hooks(True)
    return top is not None and top[0] is hooks[0]


class Leftovers:
    """The tensors of one forward that stay as they are: kept, or given to other hooks around ours, and counted."""

    def __init__(self, shelf: object = None) -> None:
        self.shelf = shelf
        self.outer: Hooks | None = None
        self.small_sizes: list[int] = []
        self._sizes: dict[tuple[str, str, str, str], list[int]] = {}  # by path, role, reason and function

    def leave(self, tensor: torch.Tensor, reason: str) -> Packed:
        """Keep a tensor that is no concern of ours."""
        self._count(("", "", reason, ""), tensor.nbytes if tensor.layout is torch.strided else 0)
        return self.keep(tensor)

    def keep_exact(
        self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role, path: str, call: Call | None
    ) -> Packed:
        """Keep a tensor of which every bit is needed and nothing is stored yet."""
        reason = ledger.UNKNOWN if role is UNKNOWN else NEEDED
        self._count((path, role.name, reason, "" if call is None else call.name), storage.nbytes())
        kept = self.keep(tensor)
        if isinstance(kept, Kept):
            kept.shelf = self.shelf
            setattr(storage, NOTE, weakref.ref(kept))
        return kept

    def keep(self, tensor: torch.Tensor, stored: Stored | None = None) -> Packed:
        """Return the tensor as it is, or what hooks around ours make of it."""
        if self.outer is None:
            return Kept(tensor, stored)
        if stored is not None and stored.n_saves == 0:
            stored.kept = None  # theirs now
        return Passed(tensor, self.outer)

    def are_alone(self, hooks: Hooks) -> bool:
        """Return whether nobody's hooks but these get what is saved now: none inside of them, none around."""
        return self.outer is None and is_top(hooks)

    def end_forward(self, book: ledger.Ledger) -> None:
        """Hand the counts over."""
        self.outer = None
        for (path, role, reason, function), sizes in (
            (("", "", ledger.SMALL, ""), self.small_sizes),
            *self._sizes.items(),
        ):
            if sizes:
                book.record_kept(path, role, sum(sizes), reason, function, len(sizes))
                sizes.clear()

    def _count(self, key: tuple[str, str, str, str], nbytes: int) -> None:
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = []
        sizes.append(nbytes)
