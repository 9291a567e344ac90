"""Relative bounds of views that are a part of their storage.

Whole storages are coded (shelf.py), and a code takes the RMS of all that it codes. What is promised is relative to the
tensor that was saved: a query that is cut out of a projection, half of a chunk(2), rows of a larger buffer. The rest of
the storage may be much larger, or nobody's values at all. So there the bound is an absolute one, from the view's own
RMS; and what several views of one storage need, the strictest of them decides (Stored.missing).
"""

from __future__ import annotations

import math

import torch

from slimgrad.bounds.fixed import Absolute
from slimgrad.codecs import Bound
from slimgrad.codecs.cast import rms_of
from slimgrad.policy import Plan

A_LITTLE_LESS = 1 - 1e-5  # for the rounding of sums in float32


def own_plan(plan: Plan, view: torch.Tensor, nbytes: int) -> Plan:
    """Return the plan for coding a storage of so many bytes because of this view."""
    bound = plan.bound
    if bound is None or not bound.needs_rms or covers(view, nbytes):
        return plan
    eps = own_eps(bound, view, plan.axis)
    return plan._replace(bound=Absolute(eps)) if eps > 0 else plan  # zeros come back as they are anyway


def covers(view: torch.Tensor, nbytes: int) -> bool:
    """Return whether the view is all of its storage, as it is almost always."""
    return view.numel() * view.element_size() >= nbytes - nbytes % view.element_size()


def own_eps(bound: Bound, view: torch.Tensor, axis: int | None = None) -> float:
    """Return the largest error that the bound allows in the view; with channels, in the smallest of them."""
    if axis is None or view.dim() <= axis:
        return bound.eps(_rms(view)) * A_LITTLE_LESS
    sizes = [_rms(channel) for channel in view.unbind(axis)]
    return bound.eps(min((size for size in sizes if size > 0), default=0.0)) * A_LITTLE_LESS


def _rms(view: torch.Tensor) -> float:
    """Return the RMS of the finite values that are not zero."""
    view = view.detach()
    norm = float(torch.linalg.vector_norm(view, dtype=torch.float32))
    if not math.isfinite(norm):
        return rms_of(view.reshape(-1))
    return norm / math.sqrt(max(1, int(torch.count_nonzero(view))))
