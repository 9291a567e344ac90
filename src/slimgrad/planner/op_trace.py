"""What a training step computes and saves, in order, taken from a run on fake tensors.

    trace = OpTrace()
    predict(work, batch, watch=lambda: trace)
    trace.layers        one per saved activation: FLOP and bytes of the operators that led to it, forward and backward

Operators are counted by torch's own formulas (torch.utils.flop_counter) and by the bytes of their arguments and
results. A layer ends where an activation is saved, and its backward begins where that activation is read again.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from slimgrad.origins import is_view_of_parameter

MIN_BYTES = 4096
SPARSE_NODES = ("Relu", "MaxPool")


@dataclass(slots=True)
class Work:
    """FLOP and bytes of some operators, in order."""

    operators: list[tuple[float, int]] = field(default_factory=list)

    def seconds(self, flops: float, bandwidth: float) -> float:
        """Return the time at these rates: each operator waits for its arithmetic or for memory, whichever is longer."""
        return sum(max(flop / flops, nbytes / bandwidth) for flop, nbytes in self.operators)


@dataclass(slots=True)
class Layer:
    """One saved activation, and the work that belongs to it."""

    nbytes: int
    is_values: bool  # floating point: neither a mask nor indices
    is_sparse: bool  # made by a ReLU, or pooled from one
    forward: Work
    backward: Work = field(default_factory=Work)


class OpTrace(TorchDispatchMode):
    """Collects layers while a step runs; hooks on saved tensors say where one ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self.tail = Work()  # forward after the last save: the loss
        self._work = self.tail
        self._seen: weakref.WeakKeyDictionary[torch.UntypedStorage, int] = weakref.WeakKeyDictionary()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> OpTrace:
        self._hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            count = flop_registry.get(func._overloadpacket)
            flop = float(count(*args, **(kwargs or {}), out_val=out)) if count is not None else 0.0
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
            self._work.operators.append((flop, sum({id(t): t.nbytes for t in tensors}.values())))
        return out

    def _pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
        storage = tensor.untyped_storage()
        number = self._seen.get(storage)
        if number is None and not is_view_of_parameter(tensor) and storage.nbytes() >= MIN_BYTES:
            number = self._seen[storage] = len(self.layers)
            is_sparse = type(tensor.grad_fn).__name__.startswith(SPARSE_NODES)
            self.layers.append(Layer(storage.nbytes(), tensor.is_floating_point(), is_sparse, self.tail))
            self.tail = self._work = Work()
        return (tensor if tensor.grad_fn is None else tensor.detach()), number

    def _unpack(self, packed: tuple[torch.Tensor, int | None]) -> torch.Tensor:
        tensor, number = packed
        if number is not None:
            self._work = self.layers[number].backward
        return tensor
