"""Pieces of training that many tests share: modules made of a function, gradients, and what can be said about them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from slimgrad.planner.out_of_memory import give_back_memory
from slimgrad.report.memory import resident_now

AUTOCASTS = {"float32": contextlib.nullcontext, "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16)}


class Calls(nn.Module):
    """A module whose forward is the given function; the other arguments become its parameters and submodules."""

    def __init__(self, function: Callable[..., Any], **members: nn.Parameter | nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def gradients(loss: torch.Tensor, *sources: torch.Tensor | nn.Module) -> list[torch.Tensor]:
    """Return the gradients of the loss for tensors and for the parameters of modules; .grad is left alone."""
    wanted = []
    for source in sources:
        found = source.parameters() if isinstance(source, nn.Module) else [source]
        wanted += [tensor for tensor in found if tensor.requires_grad]
    return [g for g in torch.autograd.grad(loss, wanted, allow_unused=True) if g is not None]


def train_step(
    model: nn.Module,
    criterion: nn.Module,
    inputs: torch.Tensor,
    target: torch.Tensor,
    precision: str = "float32",
    seed: int = 1,
) -> list[torch.Tensor]:
    """Return the loss, all gradients and all buffers after one step that always draws the same random numbers."""
    torch.manual_seed(seed)
    with AUTOCASTS[precision]():
        loss = criterion(model(inputs), target)
    sources = [inputs, model] if inputs.requires_grad else [model]
    return [loss.detach(), *gradients(loss, *sources), *(b.clone() for b in model.buffers())]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Return whether both lists hold the same bits in the same layout (NaN equals NaN)."""
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(bits(a), bits(b))
        for a, b in zip(first, second, strict=True)
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def relative_error(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """Return ||first - second|| / ||second|| over all tensors together."""
    error = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(first, second, strict=True))
    return (error / sum(float(b.double().square().sum()) for b in second)) ** 0.5


def random(*shape: int, seed: int = 0, grad: bool = True) -> torch.Tensor:
    """Return normal values from their own generator."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_(grad)


def hooks_are_off() -> bool:
    """Return whether no saved-tensor hooks are installed in this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def kept_bytes(session: Any) -> int:
    """Return the bytes that autograd's graph keeps through the session's hooks, after forward and before backward.

    For slimgrad this is what its ledger says; tests/training/test_report_is_true.py sees that it is true.
    """
    if hasattr(session, "report"):
        return session.report().to_dict()["last_step"]["saved_out"]
    return session.kept_bytes()


def resident() -> int:
    """Return the resident set once everything that is free has been given back; 0 where the system does not tell."""
    give_back_memory()
    return resident_now() or 0
