"""Models in which results can be derived from a coded input, and a look at what their graphs hold."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import nn

import slimgrad
from slimgrad import Relative


@dataclasses.dataclass(frozen=True, slots=True)
class Promise(Relative):
    """A bound that stays as it is, and from which results may be derived."""

    derives: ClassVar[bool] = True


def chain(*between: nn.Module, norm: nn.Module | None = None) -> nn.Sequential:
    """A convolution, a norm, some activations, and a convolution that reads what they make of it."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8) if norm is None else norm
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, *between, nn.Conv2d(8, 4, 3, padding=1))
    with torch.no_grad():
        norm.weight.uniform_(-1.5, 1.5)
        norm.bias.normal_()
    return model


X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def attached(model: nn.Module, bound=None, **options) -> slimgrad.Session:
    return slimgrad.attach(model, bound=bound or Promise(0.4), min_bytes=64, **options)


def stored_at(session: slimgrad.Session) -> dict[str, int]:
    return {path: sums.nbytes_out for path, sums in session.report().by_module().items()}


def saved_by(result: torch.Tensor, kind: str, slot: str) -> torch.Tensor:
    """Return what the one node of this kind behind a result has saved."""
    stack, seen, found = [result.grad_fn], set(), []
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
            found += [node] if type(node).__name__.startswith(kind) else []
    return getattr(found[0], f"_saved_{slot}")
