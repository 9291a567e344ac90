"""Which function saves a tensor, and what its backward will read of it.

`role_of(tensor, call)` is asked inside pack, where `call` is the torch function that is running (None outside of any).
Functions are looked up as objects, found once under all their names (F.relu, torch.relu, Tensor.relu_). What is not in
the table is UNKNOWN, and UNKNOWN is kept bit for bit. How a tensor is told to be one argument or another: origins.py.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from slimgrad.origins import (
    is_from,
    is_parameter,
    is_registered,
    is_result,
    is_scaled,
    is_scaled_result,
    is_view_of_result,
    leaf_role,
    rebuilt_role,
)
from slimgrad.roles import BOOLEAN, EXACT, PARAMETER, UNKNOWN, Comparison, Need, Role, Window, flag_role

INF = float("inf")
LOG_SOFTMAX_NODE, SOFTMAX_NODES = "LogSoftmaxBackward0", ("SoftmaxBackward0", "SafeSoftmaxBackward0")
EXACTLY = Need.EXACT  # a plain global: looking a member up in its Enum takes longer
# Factors on the bound where an error is amplified: exp(qk - lse) in attention grows exponentially with the logits,
# curved activations weigh an error by their second derivative. bench/noise.py measures gradient errors of whole models.
ATTENTION_SCALE, CURVED_SCALE, SCATTERED_SCALE, LOG_SOFTMAX_ABSOLUTE = 1 / 64, 1 / 4, 1 / 8, 0.2

CONV = Role("conv input", Need.VALUES)
FROZEN_CONV = Role("frozen conv input", Need.SHAPE, in_memory=True)
LINEAR = Role("linear input", Need.VALUES)
PRODUCT = Role("product operand", Need.TIGHT, scale=CURVED_SCALE)
BATCH_NORM = Role("batch norm input", Need.VALUES, axis=1, is_centred=True)
POOL_INPUT = Role("pool input", Need.SHAPE)
LOSS_INPUT = Role("loss input", Need.SHAPE)
POOL_INDEX = Role("pool indices", Need.INDEX)
DROPOUT = Role("dropout mask", Need.MASK)
LOG_SOFTMAX = Role("log-softmax result", Need.TIGHT, scale=LOG_SOFTMAX_ABSOLUTE, absolute=LOG_SOFTMAX_ABSOLUTE)
QUERY_KEY = Role("attention query, key", Need.TIGHT, scale=ATTENTION_SCALE)
VALUE = Role("attention value", Need.TIGHT, scale=CURVED_SCALE)
ATTENTION = Role("attention result", Need.TIGHT, scale=CURVED_SCALE)
ABS = Role("abs input", Need.VALUES, keeps_sign=True)
PRELU = Role("prelu input", Need.TIGHT, scale=CURVED_SCALE, keeps_sign=True)


class Call(NamedTuple):
    """The torch function that is running."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "")

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        if position < len(self.args):
            return self.args[position]
        return default if self.kwargs is None else self.kwargs.get(name, default)


Consumer = Callable[[torch.Tensor, Call], Role]


def role_of(tensor: torch.Tensor, call: Call | None) -> Role:
    """Return what the running function needs of a tensor that it saves."""
    base = tensor._base
    owner = tensor if base is None else base
    if type(owner) is not torch.Tensor and is_registered(owner):
        return PARAMETER
    role = UNKNOWN
    if call is not None:
        consumer = CONSUMERS.get(call.function, UNKNOWN)
        role = consumer if isinstance(consumer, Role) else consumer(tensor, call)
    if role.need is not EXACTLY:
        return role
    if tensor.dtype == torch.bool:
        return BOOLEAN
    if tensor.grad_fn is None or call is None:
        return role
    return leaf_role(tensor, (*call.args, *(call.kwargs or {}).values())) or role


def _weighted(role: Role, if_frozen: Role = EXACT) -> Consumer:
    """Return the consumer for functions of (input, weight, ...) that are linear in both.

    `if_frozen` is the role of an input that is saved although the weight gets no gradient, so that nobody reads it.
    """

    def consumer(tensor: torch.Tensor, call: Call) -> Role:
        weight = call.argument(1, "weight")
        if not isinstance(weight, torch.Tensor):
            return UNKNOWN
        if weight.requires_grad and not is_from(tensor, weight):
            return role
        if weight.grad_fn is not None:
            return EXACT  # a computed weight
        if tensor.untyped_storage() is weight.untyped_storage():
            return PARAMETER
        return (
            rebuilt_role(tensor, weight) if weight.requires_grad else frozen(tensor, weight, call.argument(0, "input"))
        )

    def frozen(tensor: torch.Tensor, weight: torch.Tensor, source: Any) -> Role:
        if tensor.requires_grad or is_from(tensor, source):
            return if_frozen
        is_told = isinstance(source, torch.Tensor) and (source.requires_grad or source.shape != weight.shape)
        return rebuilt_role(tensor, weight) if is_told else EXACT  # or else autocast's copy of an input like a weight

    return consumer


def _product(first: int) -> Consumer:
    """Return the consumer for matrix products of two tensors, which begin at this position."""

    def consumer(tensor: torch.Tensor, call: Call) -> Role:
        operands = [operand for operand in call.args[first:] if isinstance(operand, torch.Tensor)]
        if len(operands) != 2:
            return UNKNOWN
        parameters = [operand for operand in operands if is_parameter(operand)]
        if not parameters:
            return PRODUCT if tensor.requires_grad else EXACT  # a constant is a weight that nobody registered
        is_weight = any(not operand.requires_grad or is_from(tensor, operand) for operand in parameters)
        return EXACT if is_weight else LINEAR  # see origins.py, Note [Which argument is it]

    return consumer


def _input_is(role: Role) -> Consumer:
    """Return the consumer for functions of which only the first argument has this role."""

    def consumer(tensor: torch.Tensor, call: Call) -> Role:
        if call.args and call.args[0] is tensor:  # nearly always
            return role
        return role if is_from(tensor, call.argument(0, "input")) else EXACT

    return consumer


@functools.lru_cache(maxsize=1024)
def _in_rows(name: str, row: int, is_centred: bool = False, scale: float = 1.0) -> Role:
    """Return the role of a tensor that is normalised in rows of so many values, which lie together in memory.

    Its gradient divides by what each row has of its own: an error that is small beside the whole tensor can be large
    beside a row (layer norm of a new ViT at Relative(0.25): gradient error 1.18 by tensor, 0.02 by row). Where rows
    are scattered in memory (row = 0) only a smaller bound helps.
    """
    need = Need.VALUES if scale == 1.0 else Need.TIGHT
    if row:
        return Role(name, need, row=row, is_centred=is_centred, scale=scale)
    return Role(name, Need.TIGHT, scale=scale * SCATTERED_SCALE)


def _row_length(tensor: torch.Tensor, length: int) -> int:
    """Return the length of rows that fill the tensor's whole memory one after the other, or 0."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return length if is_whole and length and tensor.numel() % length == 0 else 0


def _layer_norm(tensor: torch.Tensor, call: Call) -> Role:
    if not is_from(tensor, call.argument(0, "input")):
        return EXACT
    shape = call.argument(1, "normalized_shape", ())
    return _in_rows("layer norm input", _row_length(tensor, math.prod(shape)), is_centred=True)


def _group_norm(tensor: torch.Tensor, call: Call) -> Role:
    if not is_from(tensor, call.argument(0, "input")):
        return EXACT
    n_rows = tensor.shape[0] * call.argument(1, "num_groups", 1)
    return _in_rows("group norm input", _row_length(tensor, tensor.numel() // max(1, n_rows)), is_centred=True)


def _rms_norm(tensor: torch.Tensor, call: Call) -> Role:
    # Composite on a CPU: the input, 1/rms (one value per row), and the normalised input for the weight's gradient.
    source = call.argument(0, "input")
    if not isinstance(source, torch.Tensor) or tensor.shape != source.shape:
        return EXACT
    if not is_from(tensor, source) and not is_result(tensor, "MulBackward0"):
        return EXACT
    shape = call.argument(1, "normalized_shape", ())
    return _in_rows("rms norm input", _row_length(tensor, math.prod(shape)))


def _softmax(tensor: torch.Tensor, call: Call) -> Role:
    dim = call.argument(1, "dim")
    is_last = dim in (-1, tensor.dim() - 1)
    return _in_rows("softmax result", _row_length(tensor, tensor.shape[-1] if is_last else 0), scale=CURVED_SCALE)


def _compares(name: str, test: Comparison, low: Any, high: Any, is_sparse: bool = False) -> Consumer:
    """Return the consumer for functions that only ask between which bounds a value is.

    A bound is a number or (position, name, default) of an argument; None there means no bound.
    """

    def consumer(tensor: torch.Tensor, call: Call) -> Role:
        bounds = [call.argument(*bound) if isinstance(bound, tuple) else bound for bound in (low, high)]
        bounds = [default if bound is None else bound for bound, default in zip(bounds, (-INF, INF), strict=True)]
        if not tensor.is_floating_point() or not all(isinstance(bound, (int, float)) for bound in bounds):
            return UNKNOWN
        return flag_role(name, test, float(bounds[0]), float(bounds[1]), tensor.dtype, is_sparse)

    return consumer


def _leaky_relu(tensor: torch.Tensor, call: Call) -> Role:
    slope = call.argument(1, "negative_slope", 0.01)
    if not isinstance(slope, (int, float)) or slope < 0 or not tensor.is_floating_point():
        return UNKNOWN
    return flag_role("leaky relu input", Comparison.ABOVE, 0.0, INF, tensor.dtype)


def _max_pool(ndim: int) -> Consumer:
    def consumer(tensor: torch.Tensor, call: Call) -> Role:
        if tensor.dtype != torch.int64:
            return POOL_INPUT
        size = tuple(call.argument(0, "input").shape[-ndim:])
        names = ("kernel_size", "stride", "padding", "dilation")
        sizes = [call.argument(position, name) for position, name in enumerate(names, 1)]
        return _index_role(Window(size, *(tuple(size) if isinstance(size, list) else size for size in sizes)))

    return consumer


@functools.lru_cache(maxsize=1024)
def _index_role(window: Window) -> Role:
    return Role(POOL_INDEX.name, Need.INDEX, window=window)


def _adaptive_max_pool(tensor: torch.Tensor, call: Call) -> Role:
    return POOL_INDEX if tensor.dtype == torch.int64 else POOL_INPUT


def _dropout(tensor: torch.Tensor, call: Call) -> Role:
    is_input = tensor.grad_fn is not None or is_from(tensor, call.argument(0, "input"))
    return EXACT if is_input else DROPOUT


def _cross_entropy(tensor: torch.Tensor, call: Call) -> Role:
    if is_view_of_result(tensor, LOG_SOFTMAX_NODE):
        return LOSS_INPUT  # of logits with more than four dimensions, nll_loss saves a view
    return LOG_SOFTMAX if is_result(tensor, LOG_SOFTMAX_NODE) else EXACT


def _nll_loss(tensor: torch.Tensor, call: Call) -> Role:
    return LOSS_INPUT if tensor is call.argument(0, "input") else EXACT


def _attention(tensor: torch.Tensor, call: Call) -> Role:
    query, key, value = (call.argument(*at) for at in ((0, "query"), (1, "key"), (2, "value")))
    if is_from(tensor, query) or is_from(tensor, key):
        return QUERY_KEY
    if is_from(tensor, value):
        return VALUE
    if type(tensor.grad_fn).__name__.startswith("ScaledDotProduct"):
        return ATTENTION
    # or else it is composed of plain functions: (a q) (a k)^T, softmax, dropout, and a product with v
    if is_result(tensor, *SOFTMAX_NODES):
        return _softmax(tensor, Call(functional.softmax, (tensor, -1), None))
    if is_scaled(tensor, query) or is_scaled(tensor, key):
        return QUERY_KEY
    if is_scaled_result(tensor, *SOFTMAX_NODES):
        return PRODUCT
    if tensor.grad_fn is None and call.argument(4, "dropout_p", 0.0):
        return DROPOUT if tensor.shape[-1] == key.shape[-2] else EXACT
    return EXACT


def _curved(name: str, scale: float = CURVED_SCALE) -> Role:
    return Role(name, Need.TIGHT, scale=scale)


def _table() -> Iterator[tuple[str, Consumer | Role]]:
    """Yield names of functions and what they need; a Role stands for everything that the function saves."""
    for dims in ("1d", "2d", "3d"):
        yield f"conv{dims}", _weighted(CONV, FROZEN_CONV)
        yield f"conv_transpose{dims}", _weighted(CONV, FROZEN_CONV)
        for max_pool in (f"max_pool{dims}", f"max_pool{dims}_with_indices"):
            yield max_pool, _max_pool(int(dims[0]))
        yield f"adaptive_max_pool{dims}", _adaptive_max_pool
        yield f"adaptive_max_pool{dims}_with_indices", _adaptive_max_pool
        yield f"avg_pool{dims}", POOL_INPUT
        yield f"adaptive_avg_pool{dims}", POOL_INPUT
        yield f"dropout{dims}", _dropout
    yield "linear", _weighted(LINEAR)
    yield from ((name, _product(0)) for name in ("mm", "matmul", "bmm", "__matmul__", "__rmatmul__"))
    yield from ((name, _product(1)) for name in ("addmm", "baddbmm", "addbmm", "einsum"))
    yield "batch_norm", _input_is(BATCH_NORM)
    yield "instance_norm", _input_is(BATCH_NORM)
    yield "group_norm", _group_norm
    yield "layer_norm", _layer_norm
    yield "rms_norm", _rms_norm
    yield "relu", _compares("relu result", Comparison.NOT_BELOW, 0.0, INF, is_sparse=True)
    yield "leaky_relu", _leaky_relu
    yield "relu6", _compares("relu6 input", Comparison.BETWEEN_NUMBERS, 0.0, 6.0)
    yield "hardtanh", _compares("hardtanh input", Comparison.BETWEEN_NUMBERS, (1, "min_val", -1.0), (2, "max_val", 1.0))
    yield "hardsigmoid", _compares("hardsigmoid input", Comparison.BETWEEN, -3.0, 3.0)
    threshold = _compares("threshold input", Comparison.NOT_BELOW, (1, "threshold", None), INF)
    yield "threshold", threshold
    yield "_threshold", threshold
    yield "clamp", _compares("clamp input", Comparison.WITHIN, (1, "min", None), (2, "max", None))
    yield "clip", _compares("clamp input", Comparison.WITHIN, (1, "min", None), (2, "max", None))
    yield "clamp_min", _compares("clamp input", Comparison.WITHIN, (1, "min", None), INF)
    yield "clamp_max", _compares("clamp input", Comparison.WITHIN, -INF, (1, "max", None))
    yield "abs", ABS
    yield "prelu", _input_is(PRELU)
    for name in ("gelu", "silu", "mish", "softplus", "elu", "selu", "celu", "hardswish", "glu"):
        yield name, _input_is(_curved(f"{name} input"))
    yield "sigmoid", _curved("sigmoid result")
    yield "tanh", _curved("tanh result")
    yield "softmax", _softmax
    yield "log_softmax", LOG_SOFTMAX
    yield "dropout", _dropout
    yield "embedding", EXACT
    yield "cross_entropy", _cross_entropy
    yield "nll_loss", _nll_loss
    yield "scaled_dot_product_attention", _attention


def functions_named(name: str) -> Iterator[Callable[..., Any]]:
    """Yield the objects that go by this name, or by its in-place form."""
    for space in (torch, functional, torch.Tensor, torch._C._nn):  # pyright: ignore[reportAttributeAccessIssue]
        for spelling in (name, f"{name}_"):
            function = getattr(space, spelling, None)
            if function is not None:
                yield function


CONSUMERS: dict[Callable[..., Any], Consumer | Role] = {
    function: consumer for name, consumer in _table() for function in functions_named(name)
}


def _without_dispatch(function: types.FunctionType) -> types.FunctionType:
    """Return the Python function without its own dispatch, so that a function mode sees the functions inside it."""
    scope = {**function.__globals__, "has_torch_function": lambda *_: False}
    inner = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    inner.__kwdefaults__ = function.__kwdefaults__
    return inner


# Composite functions into which the mode looks: they call many others, each with a need of its own.
COMPOSITES: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.multi_head_attention_forward: _without_dispatch(functional.multi_head_attention_forward)
}
