"""What a node of autograd's graph says about the function that reads a saved tensor, and about its gradients.

Everything comes from the node itself: sizes and strides from its attributes, the weight from the edge that leads to it,
gradients from the hook in which `read` is called. So functional code is read like modules, and nothing has to be noted
in the forward pass. A function that is not known here is described by the energies of its gradients alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from slimgrad.bounds.base import NormChannels, Reader
from slimgrad.bounds.formulas import overlap
from slimgrad.streams import ACCUMULATE, energy, leaf_of

CONV, LINEAR = "ConvolutionBackward0", {"AddmmBackward0": 2, "MmBackward0": 1}  # edge that leads to the weight
BATCH_NORMS = frozenset({"NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"})

Grads = tuple[torch.Tensor | None, ...]


def read(
    node: Any, size: torch.Size, inputs: Grads, outputs: Grads, parameters: Mapping[int, str]
) -> tuple[Reader, torch.Tensor | None] | None:
    """Return what the node did with its gradients, and the leaf that is its weight, if any; None without a gradient.

    `size` is that of the saved tensor; `inputs` are the gradients that leave the node, `outputs` those that came.
    """
    grad = outputs[0]
    if grad is None:
        return None
    kind = type(node).__name__
    edge = 1 if kind == CONV or kind in BATCH_NORMS else LINEAR.get(kind)
    if kind in LINEAR and leaf_of(node, edge) is None:
        edge = None  # a product of two activations
    rows = grad.detach().abs().flatten(1).amax(1) if grad.dim() > 1 and grad.numel() else grad.detach().abs()
    reader = Reader(
        function=kind.removesuffix("Backward0").lower(),
        batch=grad.shape[0] if grad.dim() else 1,
        out_grad2=float(energy(grad)),
        out_grad_peak=float(rows.float().mean()),
        in_grad2=_energy(inputs, _input_edge(kind)),
    )
    if edge is None:
        return reader, None
    leaf, weight_grad = leaf_of(node, edge), inputs[edge] if edge < len(inputs) else None
    if weight_grad is not None:
        mean = float(weight_grad.detach().float().abs().mean())
        reader = replace(reader, weight_grad2=float(energy(weight_grad)), weight_grad_abs=mean)
    reader = replace(reader, weight=parameters.get(id(leaf), ""))
    return _with_shape(reader, node, size, outputs, inputs), leaf


def _input_edge(kind: str) -> int:
    return 1 if kind == "AddmmBackward0" else 0


def _energy(grads: Grads, edge: int) -> float:
    grad = grads[edge] if edge < len(grads) else None
    return 0.0 if grad is None else float(energy(grad))


def _with_shape(reader: Reader, node: Any, size: torch.Size, outputs: Grads, inputs: Grads) -> Reader:
    kind, grad = type(node).__name__, outputs[0]
    assert grad is not None
    if kind in LINEAR:
        n_in, n_out = _weight_size(node, LINEAR[kind])
        return replace(reader, function="linear", in_channels=n_in, out_channels=n_out)
    if kind in BATCH_NORMS:
        shape = {"in_channels": size[1], "out_channels": size[1], "places": math.prod(size[2:])}
        return replace(reader, function="batch_norm", norm=_norm_channels(node, grad, inputs), **shape)
    first, second, *kernel = _weight_size(node, 1)
    groups, is_transposed = node._saved_groups, node._saved_transposed
    n_in, n_out = (first, second * groups) if is_transposed else (second * groups, first)
    stride, padding, dilation = (
        _per_dim(getattr(node, f"_saved_{name}"), len(kernel)) for name in ("stride", "padding", "dilation")
    )
    return replace(
        reader,
        function=f"conv{'_transpose' if is_transposed else ''}{len(kernel)}d",
        in_channels=n_in,
        out_channels=n_out,
        groups=groups,
        taps=math.prod(kernel),
        stride=math.prod(stride),
        places=math.prod(grad.shape[2:]),
        overlap=overlap(size[2:], grad.shape[2:], kernel, stride, padding, dilation, is_transposed),
    )


def _weight_size(node: Any, edge: int) -> list[int]:
    following, slot = node.next_functions[edge]
    weight = following.variable if type(following).__name__ == ACCUMULATE else following._input_metadata[slot]
    return list(weight.shape)


def _per_dim(values: Any, ndim: int) -> tuple[int, ...]:
    values = tuple(values)
    return values * ndim if len(values) == 1 else values


def _norm_channels(node: Any, grad: torch.Tensor, inputs: Grads) -> NormChannels | None:
    inv_std = node._saved_result2
    if inv_std is None or not inv_std.numel() or grad.dim() < 2:
        return None  # running statistics were used: x takes no part in backward but for the weight's gradient
    n, others = grad.shape[1], [dim for dim in range(grad.dim()) if dim != 1]
    weight, weight_grad = node._saved_weight, inputs[1]
    return NormChannels(
        inv_std=_numbers(inv_std),
        weight=(1.0,) * n if weight is None else _numbers(weight),
        weight_grad=(0.0,) * n if weight_grad is None else _numbers(weight_grad),
        peak_input=_numbers(node._saved_input.detach().abs().amax(others)),
        peak_grad=_numbers(grad.detach().abs().amax(others)),
        n_grads=tuple(map(int, _n_nonzero(grad.detach(), others).tolist())),
    )


def _n_nonzero(values: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Return how many values are not zero, NaN excepted (it has no sign): several times as fast as counting them."""
    signs = values.sign()
    return signs.mul_(signs).sum(dims, dtype=torch.float32)


def _numbers(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(values.detach().float().tolist())
