"""Modules whose forward is known to be one call of one function, and whether a module is still that.

While one of them runs, its hook says which function saves, and the function mode, which costs far more, can rest.

Note [Taken at its word]. A module is not, where somebody else may have changed what it computes: its forward or that of
its class was replaced, it has pre-hooks, or global module hooks that are not a session's own run inside of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooking
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from slimgrad.consumers import Call
from slimgrad.origins import PLAIN_TYPES, is_registered

# As (function, names of the attributes after the input).
_SIMPLE: dict[tuple[type, ...], tuple[Callable[..., Any], tuple[str, ...]]] = {
    (nn.Conv1d, nn.Conv2d, nn.Conv3d): (torch.conv2d, ("weight",)),
    (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d): (torch.conv_transpose2d, ("weight",)),
    (nn.Linear,): (functional.linear, ("weight",)),
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d): (
        functional.batch_norm,
        ("running_mean", "running_var", "weight", "bias"),
    ),
    (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d): (functional.instance_norm, ()),
    (nn.LayerNorm,): (functional.layer_norm, ("normalized_shape", "weight", "bias", "eps")),
    (nn.GroupNorm,): (functional.group_norm, ("num_groups", "weight", "bias", "eps")),
    (nn.ReLU,): (functional.relu, ()),
    (nn.ReLU6, nn.Hardtanh): (functional.hardtanh, ("min_val", "max_val")),
    (nn.LeakyReLU,): (functional.leaky_relu, ("negative_slope",)),
    (nn.GELU,): (functional.gelu, ("approximate",)),
    (nn.SiLU,): (functional.silu, ()),
    (nn.Hardswish,): (functional.hardswish, ()),
    (nn.Sigmoid,): (torch.sigmoid, ()),
    (nn.Tanh,): (torch.tanh, ()),
    (nn.Softmax,): (functional.softmax, ("dim",)),
    (nn.Dropout,): (functional.dropout, ()),
    (nn.MaxPool2d,): (functional.max_pool2d, ("kernel_size", "stride", "padding", "dilation")),
    (nn.AvgPool2d,): (functional.avg_pool2d, ()),
    (nn.AdaptiveAvgPool2d,): (functional.adaptive_avg_pool2d, ()),
    (nn.Embedding,): (functional.embedding, ()),
}


class Simple(NamedTuple):
    """One kind of simple module."""

    function: Callable[..., Any]
    names: tuple[str, ...]  # of attributes that are arguments after the input
    forward: Callable[..., Any]  # of its class, as torch has it


def _simple_modules() -> dict[type[nn.Module], Simple]:
    kinds = {kind: entry for kinds, entry in _SIMPLE.items() for kind in kinds}
    return {
        kind: Simple(*entry, kind.forward)
        for kind, entry in kinds.items()
        if kind.forward.__globals__["__name__"] == kind.__module__  # else it was replaced before we came
    }


SIMPLE_MODULES = _simple_modules()
_own_hooks: set[int] = set()  # ids of the global module hooks of all sessions


class OwnHooks:
    """Hooks of a session around the forwards of all modules."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        ]
        _own_hooks.update(handle.id for handle in self._handles)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
            _own_hooks.discard(handle.id)


def is_simple(module: nn.Module) -> bool:
    """Return whether the module's forward is one known call; see Note [Taken at its word]."""
    kind = type(module)
    simple = SIMPLE_MODULES.get(kind)
    return (
        simple is not None
        and kind.forward is simple.forward
        and not module._forward_pre_hooks
        and "forward" not in module.__dict__
        and len(hooking._global_forward_pre_hooks) + len(hooking._global_forward_hooks) == len(_own_hooks)
    )


def call_of(module: nn.Module, args: tuple[Any, ...]) -> Call | None:
    """Return the one call that the forward of a simple module makes."""
    function, names, _ = SIMPLE_MODULES[type(module)]
    if len(args) != 1 or type(args[0]) not in PLAIN_TYPES or is_registered(args[0]):
        return None
    return Call(function, (args[0], *(getattr(module, name) for name in names)), None)
