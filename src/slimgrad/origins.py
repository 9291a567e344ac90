"""Where a saved tensor comes from, as autograd's graph tells: from which argument of a function, from which parameter.

Note [Which argument is it]. Pack gets a tensor, not the name of a slot. It belongs to an argument when it is that
object, shares its storage, or is a view or cast of it, which the nodes of autograd's graph tell. A function saves its
weight only if its input needs gradients, and its input only if its weight does: where one of them has no history, that
decides.

Note [A result carries its own node]. A tensor that a function saves as its own result already has the function's node
as grad_fn; that is how the parts of composite functions (cross_entropy, attention) are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from slimgrad.roles import EXACT, PARAMETER, Need, Role

VIEWS = ("Alias", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "T", "Transpose", "UnsafeView", "View")
VIEW_NODES = frozenset({*(f"{view}Backward0" for view in VIEWS), "UnsqueezeBackward0", "SqueezeBackward1"})
COPY_NODES = frozenset({"ToCopyBackward0", "CloneBackward0"})
PLAIN_TYPES: set[type] = {
    torch.Tensor,
    torch.nn.Parameter,
}  # of which the memory is all; planner/fake_run.py adds to it
MAX_NODES = 6  # views and casts between an argument and what is saved of it


def is_view_of_parameter(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a parameter or was cut out of one."""
    # issubclass of the type: isinstance(x, Parameter) runs Python code for every tensor
    base = tensor._base
    return is_registered(tensor if base is None else base)


def is_registered(tensor: Any) -> bool:
    """Return whether the object is itself a parameter; a fake one is of another class and says so by an attribute."""
    kind = type(tensor)
    return kind is not torch.Tensor and (issubclass(kind, torch.nn.Parameter) or getattr(tensor, "_is_param", False))


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has a parameter's values, possibly copied."""
    leaf = None if is_view_of_parameter(tensor) else getattr(_origin(tensor.grad_fn)[0], "variable", tensor)
    return leaf is None or is_registered(leaf)


def leaf_role(tensor: torch.Tensor, arguments: Iterable[Any]) -> Role | None:
    """Return PARAMETER for a view of a parameter, REBUILD for a cast of a leaf that the function itself made, or None.

    A cast among the arguments is the user's, who may have changed its values behind autograd's back.
    """
    node, copy = _origin(tensor.grad_fn)
    if copy is None:
        return PARAMETER if is_registered(getattr(node, "variable", None)) else None
    leaf = getattr(copy.next_functions[0][0], "variable", None)
    if leaf is None or type(copy).__name__ != "ToCopyBackward0":
        return None
    is_argument = any(isinstance(a, torch.Tensor) and _shares_storage(tensor, a) for a in arguments)
    return None if is_argument else rebuilt_role(tensor, leaf)


def rebuilt_role(tensor: torch.Tensor, leaf: torch.Tensor) -> Role:
    """Return REBUILD for a tensor that is known to be a view of a copy of `leaf`."""
    copy = tensor if tensor._base is None else tensor._base
    if copy.shape != leaf.shape or copy.device != leaf.device or copy.untyped_storage().nbytes() != copy.nbytes:
        return EXACT
    return Role("autocast weight", Need.REBUILD, leaf=leaf)


def is_from(tensor: torch.Tensor, argument: Any) -> bool:
    """Return whether the tensor is the argument, or a view or copy of it; see Note [Which argument is it]."""
    if tensor is argument:
        return True
    if not isinstance(argument, torch.Tensor):
        return False
    if _shares_storage(tensor, argument):
        return True
    return _made(argument, _origin(tensor.grad_fn)[0])


def _shares_storage(tensor: torch.Tensor, argument: torch.Tensor) -> bool:
    return argument.layout is torch.strided and tensor.untyped_storage() is argument.untyped_storage()


def is_scaled(tensor: torch.Tensor, argument: Any) -> bool:
    """Return whether the tensor is a multiple of the argument, or of a view or copy of it."""
    return isinstance(argument, torch.Tensor) and _made(argument, _origin(_factor(tensor))[0])


def is_scaled_result(tensor: torch.Tensor, *nodes: str) -> bool:
    """Return whether the tensor is a multiple of what one of these nodes made."""
    return type(_origin(_factor(tensor))[0]).__name__ in nodes


def is_result(tensor: torch.Tensor, *nodes: str) -> bool:
    """Return whether one of these nodes made the tensor; see Note [A result carries its own node]."""
    return type(tensor.grad_fn).__name__ in nodes


def is_view_of_result(tensor: torch.Tensor, *nodes: str) -> bool:
    """Return whether the tensor is a view or copy of what one of these nodes made, and not that itself."""
    return not is_result(tensor, *nodes) and type(_origin(tensor.grad_fn)[0]).__name__ in nodes


def _made(argument: torch.Tensor, node: Any) -> bool:
    """Return whether this node made the values of the argument."""
    if node is None:
        return False
    if argument.grad_fn is None:
        return getattr(node, "variable", None) is argument
    return node is _origin(argument.grad_fn)[0]


def _factor(tensor: torch.Tensor) -> Any:
    """Return the node of the first factor of a product with something that needs no gradient, else None."""
    node = _origin(tensor.grad_fn)[0]
    if type(node).__name__ not in ("MulBackward0", "MulBackward1"):  # by a tensor, by a number
        return None
    factors = [factor for factor, _ in node.next_functions if factor is not None]
    return factors[0] if len(factors) == 1 else None


def _origin(node: Any) -> tuple[Any, Any]:
    """Return the node that made the values, before views and copies, and the node of the last copy, if any."""
    copy = None
    for _ in range(MAX_NODES):
        if node is None:
            break
        name = type(node).__name__
        if name in COPY_NODES:
            copy = copy or node
        elif name not in VIEW_NODES:
            break
        node = node.next_functions[0][0]
    return node, copy
