"""Errors of gradients, followed through autograd's graph to the parameters while backward runs.

Backward is linear in the gradient that comes in, so an error e that arrives at a node leaves it as node(e): the error
is carried along beside the gradient, node by node, in the same pass. Nothing is assumed about it, and that is the
point: compared with white noise of the same energy, the rounding error of a batch norm's input reaches the weights
below it up to 40,000 times stronger, that of a layer norm in a residual branch 300 times weaker (docs/bounds.md).

    streams = Streams(parameters)
    streams.add(node, slot, name, error)      in a hook of the node before: this error arrives at input `slot` of `node`
    streams.energies()                        by name and parameter, after backward

Several errors may go under one name; they are added up on their way, and what arrives is the energy of the sum. With
`layers=n` an error is followed through n functions that have parameters, and no farther; convolutions that keep
channels apart do not count, since behind them an error is as concentrated as before, and sums count a little, since in
a residual network there are as many ways down as blocks.

Note [Calling a node]. A node called by hand computes what autograd would compute, releases nothing and changes nothing;
its saved tensors are unpacked once more. Nodes whose hooks or code belong to somebody else (custom Functions,
checkpoint, foreign saved-tensor hooks) are not called: there the error stops, and `stopped` names the node.

Note [Who holds an error]. Errors wait in the metadata of the node where they arrive, so they die with the graph, and a
graph that is never run backward leaves nothing behind; at views they do not wait, since those cost next to nothing. Two
sessions may have errors in one graph, each under a key of its own. A hook asks torch which node is running; it holds
none itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from slimgrad.products import ACCUMULATE, CONVOLUTION, Product, Signs, leaf_of, product_of
from slimgrad.saved import Kept, Rebuilt, Saved, Shaped

# In the metadata of a node: errors that have arrived, by name, layers still to go, and slot; those that leave for a
# parameter.
WAITING, LEAVING = "slimgrad.errors", "slimgrad.leaving"
# Views and the like: one gradient comes in, one goes out, and nothing is saved
VIEWS = frozenset({"PermuteBackward0", "TransposeBackward0", "UnsafeViewBackward0", "ViewBackward0"})
SUM, FORK = "AddBackward0", 0.4  # of a layer: a residual network has as many ways as blocks; two sums on, it is far
ALL_LAYERS = math.inf  # one less is as many: errors that come by different ways are still added up where they meet

current_node: Callable[[], Any] = torch._C._current_autograd_node


class Streams:
    """The errors that are on their way to some parameters, and the energies of those that have arrived."""

    def __init__(self, parameters: Mapping[int, str], signs: Signs | None = None) -> None:
        self._names = parameters  # by id of the parameter
        self.signs = signs  # with which weights' errors are sketched, where nothing has to be exact
        self._arrived: dict[tuple[str, str], torch.Tensor] = {}  # at a parameter; by stream and parameter
        self._sketched: dict[tuple[str, str], torch.Tensor] = {}  # the same, of errors that are known by sketches
        self._norms: dict[tuple[str, str], list[torch.Tensor]] = {}
        self.stopped: set[str] = set()  # nodes that could not be called
        self.mark = object()  # of what belongs to this measurement, and keeps nothing of it alive
        self.waiting, self._leaving = (f"{key} {id(self)}" for key in (WAITING, LEAVING))

    def add(self, node: Any, slot: int, stream: str, error: torch.Tensor | None, layers: float = ALL_LAYERS) -> None:
        """Let an error arrive at a node that has not run yet."""
        if node is None or error is None:
            return
        if type(node).__name__ == ACCUMULATE:
            name = self._names.get(id(node.variable))
            if name is not None:
                error = _as_expected(error, node.variable)
                self._arrived[stream, name] = _sum(self._arrived.get((stream, name)), error)
            return
        error = _as_expected(error, node._input_metadata[slot])
        while type(node).__name__ in VIEWS:
            following, next_slot = node.next_functions[0]
            if following is None or type(following).__name__ == ACCUMULATE:  # whose gradient decides: see _wait
                break
            if (passed := node(error)) is None:  # a backward for some tensors alone goes no farther
                return
            error, node, slot = _as_expected(passed, following._input_metadata[next_slot]), following, next_slot
        waiting = node.metadata.get(self.waiting)
        if waiting is None:
            waiting = node.metadata[self.waiting] = {}
            node.register_prehook(self._carry)
        waiting[stream, layers, slot] = _sum(waiting.get((stream, layers, slot)), error)

    def leave(self, node: Any, stream: str, errors: Any, layers: float = ALL_LAYERS) -> None:
        """Let errors leave a node, one per input of its function."""
        leaves = {edge for edge in range(len(node.next_functions)) if leaf_of(node, edge) is not None}
        layers -= FORK if _is_fork(node) else bool(leaves) and not _keeps_channels_apart(node)
        for edge, ((following, slot), error) in enumerate(zip(node.next_functions, errors, strict=True)):
            if error is not None and type(following).__name__ == ACCUMULATE:
                self._wait(node, edge, stream, error)
            elif layers > 0 or edge in leaves:
                self.add(following, slot, stream, error, layers if layers > 0 else 1)

    def take(self, node: Any, stream: str, n_slots: int) -> list[torch.Tensor | None]:
        """Return the errors of a stream that have arrived at a node, by slot: someone else takes them across."""
        waiting = node.metadata.get(self.waiting, {})
        return [waiting.pop((stream, ALL_LAYERS, slot), None) for slot in range(n_slots)]

    def cross(
        self, product: Product, x: torch.Tensor, stream: str, error: torch.Tensor, layers: float = ALL_LAYERS,
        is_last: bool = False,
    ) -> None:  # fmt: skip
        """Take an error across a product that read x; to parameters alone where it goes no farther."""
        self.on_weight(product, stream, error, x)
        self.beside_weight(product, x, stream, error, layers, is_last)

    def beside_weight(
        self, product: Product, x: torch.Tensor, stream: str, error: torch.Tensor, layers: float = ALL_LAYERS,
        is_last: bool = False,
    ) -> None:  # fmt: skip
        """Take an error across a product, but to its weight; x is of the input's shape."""
        edges = product.node.next_functions
        errors: list[torch.Tensor | None] = [None] * len(edges)
        goes_on = not is_last or leaf_of(product.node, product.input) is not None
        if goes_on and edges[product.input][0] is not None:
            errors[product.input] = product.on_input(error, x)
        if product.bias is not None and edges[product.bias][0] is not None:
            errors[product.bias] = product.on_bias(error)
        self.leave(product.node, stream, errors, layers)

    def on_weight(self, product: Product, stream: str, error: torch.Tensor, x: torch.Tensor) -> None:
        """Take an error across a product to its weight: whole, or as a sketch."""
        parameter = self.sketched_by(product)
        if parameter is not None and self.signs is not None:
            return self._wait(product.node, product.weight, stream, product.sketch(error, x, self.signs), parameter)
        errors: list[torch.Tensor | None] = [None] * len(product.node.next_functions)
        errors[product.weight] = product.on_weight(error, x)
        return self.leave(product.node, stream, errors)

    def sketched_by(self, product: Product) -> torch.Tensor | None:
        """Return the parameter of which gradients are sketched here; None where they are computed."""
        return None if self.signs is None else product.parameter

    def add_sketch(self, parameter: torch.Tensor, stream: str, sketch: torch.Tensor) -> None:
        """Let the sketch of an error arrive at a parameter."""
        name = self._names.get(id(parameter))
        if name is not None:
            self._sketched[stream, name] = _sum(self._sketched.get((stream, name)), sketch)

    def _wait(
        self, node: Any, edge: int, stream: str, error: torch.Tensor, sketched: torch.Tensor | None = None
    ) -> None:
        """Let an error, or its sketch, arrive at a parameter when the node has computed the gradient it is part of.

        A backward for some tensors alone computes no gradients of others, and their errors must not arrive either.
        """
        leaving = node.metadata.get(self._leaving)
        if leaving is None:
            leaving = node.metadata[self._leaving] = []
            node.register_hook(self._release)
        leaving.append((edge, stream, error, sketched))

    def _release(self, inputs: tuple[torch.Tensor | None, ...], _: Any) -> None:
        """Run after a node: let errors arrive whose parameters get a gradient."""
        node = current_node()
        for edge, stream, error, sketched in node.metadata.pop(self._leaving, ()):
            if inputs[edge] is None:
                continue
            if sketched is None:
                following, slot = node.next_functions[edge]
                self.add(following, slot, stream, error)
            else:
                self.add_sketch(sketched, stream, error)

    def settle(self, parameter: str) -> None:
        """Take the norm of what has arrived at a parameter: its gradient is complete."""
        for key in [key for key in {**self._arrived, **self._sketched} if key[1] == parameter]:
            arrived, sketch = self._arrived.pop(key, None), self._sketched.pop(key, None)
            if arrived is not None and sketch is not None:  # of a weight that serves as a table too, say
                assert self.signs is not None
                arrived, sketch = None, sketch + self.signs.sketch(arrived).to(sketch.dtype)
            found = sketch if arrived is None else arrived
            assert found is not None
            self._norms.setdefault(key, []).append(norm(found))

    def energies(self) -> dict[str, dict[str, float]]:
        """Return the energy of the error of each parameter's gradient, by stream."""
        found: dict[str, dict[str, float]] = {}
        for (stream, parameter), norms in self._norms.items():
            found.setdefault(stream, {})[parameter] = sum(float(one) ** 2 for one in norms)
        return found

    def _carry(self, grads: tuple[torch.Tensor | None, ...]) -> None:
        """Run before a node: take its errors across."""
        node = current_node()
        waiting = None if node is None else node.metadata.pop(self.waiting, None)
        if not waiting or torch.is_grad_enabled():  # a second-order graph must not contain us
            return
        if not can_be_called(node):
            self.stopped.add(type(node).__name__)
            return
        product, x = product_of(node), None
        while waiting:
            stream, layers, _ = next(iter(waiting))
            errors = [waiting.pop((stream, layers, slot), None) for slot in range(len(grads))]
            if product is None or errors[0] is None:
                hold_for_more(node)
                self.leave(node, stream, call(node, errors), layers)
                continue
            if x is None:
                hold_for_more(node)
                x = product.x
            self.cross(product, x, stream, errors[0], layers, layers <= 1 and not _keeps_channels_apart(node))


def _is_fork(node: Any) -> bool:
    """Return whether errors go two ways from here, as behind a residual branch."""
    return type(node).__name__ == SUM and all(following is not None for following, _ in node.next_functions)


def _keeps_channels_apart(node: Any) -> bool:
    return type(node).__name__ == CONVOLUTION and node._saved_groups > 1


def call(node: Any, grads: Any) -> tuple[torch.Tensor | None, ...]:
    """Return what the node makes of these gradients; see Note [Calling a node]."""
    result = node(*grads)
    return result if isinstance(result, tuple) else (result,)


def hold_for_more(node: Any) -> None:
    """Let what the next reading of the node's saved tensors decodes be held: autograd will read them once more."""
    for _, raw in _held(node) or ():
        if raw.unpack_hook is not None and isinstance(raw.data, Saved):
            raw.data.stored.n_reads -= 1


def can_be_called(node: Any) -> bool:
    """Return whether calling the node by hand has no effect but its result; see Note [Calling a node]."""
    if isinstance(node, BackwardCFunction):
        return False
    held = _held(node)
    return held is not None and all(_is_ours(raw) for _, raw in held)


def saved_of(node: Any) -> Iterable[tuple[str, Any]]:
    """Return the saved tensors of a node as torch holds them, with the names of their slots; none that were freed."""
    return _held(node) or ()


def _held(node: Any) -> list[tuple[str, Any]] | None:
    """Return the same; None where a backward has freed them: a part of a graph that was run before may be read on."""
    found = []
    for attribute in _raw_names(type(node)):
        try:
            held = getattr(node, attribute)
        except RuntimeError:
            return None
        name = attribute.removeprefix("_raw_saved_")
        found += [(name, raw) for raw in (held if isinstance(held, (tuple, list)) else (held,)) if raw is not None]
    return found


def energy(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, as a tensor."""
    return norm(tensor).double().square_()


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """Return the root of the sum of squares, as a tensor: asking an accelerator for numbers would make it wait."""
    if tensor.layout is not torch.strided:
        tensor = (tensor.coalesce() if tensor.is_sparse else tensor).values()
    local = getattr(tensor, "to_local", None)  # of a distributed tensor; its norm would be a collective
    tensor = (local() if local is not None else tensor).detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(tensor, dtype=wide)


@functools.cache
def _raw_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _is_ours(raw: Any) -> bool:
    if raw.unpack_hook is None:
        return True
    packed = raw.data
    if isinstance(packed, tuple):
        return len(packed) == 2 and isinstance(packed[0], torch.Tensor) and isinstance(packed[1], int)
    return isinstance(packed, (Saved, Kept, Shaped, Rebuilt))


def _as_expected(error: torch.Tensor, expected: Any) -> torch.Tensor:
    """Do what autograd does between two nodes: sum over broadcast dimensions, cast."""
    shape, dtype = torch.Size(expected.shape), expected.dtype
    if error.shape != shape:
        error = error.sum_to_size(shape)
    return error if error.dtype == dtype else error.to(dtype)


def _sum(first: torch.Tensor | None, second: torch.Tensor) -> torch.Tensor:
    return second if first is None else first + second
