"""What an error of a saved tensor makes of a node's gradients: the node called by hand with the original in place.

    read_by(node, streams)                               the storages noted in this measurement that the node reads
    LINEAR_RULES[kind, slot]                             where the error leaves, and how it follows from ...
    difference(node, slot, stored, saved)                ... restored - original, as the node sees it
    with exactly(stored, saved): ...                     meanwhile these saves give the original
    minus(after, before, others)                         after - before, without new memory where that can be

Nothing of this changes what autograd computes; see Note [Calling a node] in streams.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from slimgrad.finer import Finer
from slimgrad.products import conv_weight_gradient
from slimgrad.readers import Grads
from slimgrad.saved import Saved, Stored
from slimgrad.streams import Streams, hold_for_more, saved_of

Slots = list[tuple[str, Saved]]  # of a node that read one storage: their names, and what was saved in them


def read_by(node: Any, streams: Streams) -> list[tuple[Stored, Slots]]:
    """Return the noted storages whose values a node reads, each once, with the names of its slots: x @ x.T has two.

    Noted in the measurement of these streams, that is: those of another session may be in the graph.
    """
    found: dict[int, tuple[Stored, Slots]] = {}
    for slot, raw in saved_of(node):
        packed = raw.data if raw.unpack_hook is not None else None
        if isinstance(packed, Saved) and not packed.wants_flags:
            origin = packed.stored.origin
            if origin.probe is not None and origin.probe.mark is streams.mark:
                found.setdefault(id(origin), (origin, []))[1].append((slot, packed))
    return list(found.values())


def minus(after: torch.Tensor, before: torch.Tensor, others: Grads) -> torch.Tensor:
    """Return after - before, in the memory of `before` where that is nobody else's.

    `before` is what a node returned by hand: sums over dimensions that were broadcast are still to come there.
    """
    if before.shape != after.shape:
        before = before.sum_to_size(after.shape)
    all_of_them = [tensor for tensor in (before, after, *others) if tensor is not None]
    if before.dtype != after.dtype or any(tensor.layout is not torch.strided for tensor in all_of_them):
        return after - before
    if before.untyped_storage().data_ptr() in {tensor.untyped_storage().data_ptr() for tensor in all_of_them[1:]}:
        return after - before
    return torch.sub(after, before, out=before)


def difference(node: Any, slot: str, stored: Stored, saved: Saved) -> torch.Tensor:
    """Return what the node reads less what it would have read, in memory of its own."""
    hold_for_more(node)
    restored = getattr(node, f"_saved_{slot}").detach()
    with exactly(stored, [saved]):
        exact = getattr(node, f"_saved_{slot}").detach()
        original = stored.probe.original
        is_shared = not isinstance(original, Finer) or original.is_held or 0 in exact.stride()
        return restored - exact if is_shared else torch.sub(restored, exact, out=exact)


@contextlib.contextmanager
def exactly(stored: Stored, saved: Sequence[Saved]) -> Iterator[None]:
    """Let these saves give the original of what is stored, or what is derived from that."""
    original, held = stored.probe.original, [one.stored.held for one in saved]
    if isinstance(original, Finer):
        stored.probe.n_readers -= 1
        finer, original = original, original.values(is_for_more=stored.probe.n_readers > 0)
        if (coded := finer.take_coded()) is not None:  # autograd reads these next
            held = [coded if one.stored is stored else before for one, before in zip(saved, held, strict=True)]
    stored.kept = original
    for one in saved:
        one.stored.held = None
    try:
        yield
    finally:
        stored.kept = None
        for one, before in zip(saved, held, strict=True):
            one.stored.held = before


def _first_factor(node: Any, grad: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    return getattr(node, "_saved_alpha", 1) * (difference.mT.conj() @ grad)


def _second_factor(node: Any, grad: torch.Tensor, difference: torch.Tensor) -> torch.Tensor:
    return getattr(node, "_saved_alpha", 1) * (grad @ difference.mT.conj())


# Readers that are linear in the tensor, by node and slot: the edge on which the error leaves, and the error. They get
# one gradient each.
LINEAR_RULES: dict[tuple[str, str], tuple[int, Callable[[Any, Any, torch.Tensor], torch.Tensor]]] = {
    ("ConvolutionBackward0", "input"): (1, conv_weight_gradient),
    ("MmBackward0", "self"): (1, _first_factor),
    ("MmBackward0", "mat2"): (0, _second_factor),
    ("AddmmBackward0", "mat1"): (2, _first_factor),
    ("AddmmBackward0", "mat2"): (1, _second_factor),
}
