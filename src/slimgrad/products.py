"""Convolutions and linear layers, whose gradients are products: what an error makes of each of them by itself.

    product = product_of(node)                 None where the node is no such thing, or its weight no parameter
    product.on_input(error, x)                 the input's gradient for this gradient of the result; x: of its shape
    product.on_weight(error, x)                the weight's, for any input
    product.on_bias(error)
    product.sketch(error, x, signs)            signs^T on_weight(error, x), without computing that

Note [Sketches]. Of the error of a weight's gradient only the energy is asked for, and the energy of its rows' sums with
random signs is that on average. A few such sums cost a few channels' products where the error itself costs those of
all: the random signs go to the gradient of the result, before it meets the input. Sums of sketches are sketches of
sums, as long as the signs are the same for all that arrives at a parameter. With N_SUMS of them a figure scatters by
sqrt(2 / (N_SUMS x rank)), where the rank says how many directions hold the error: some ten per cent mostly, and batches
differ by a factor of two. Requests that are not rough get no sketches: Noise's rounds and looks are, audits are not.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from slimgrad.origins import PLAIN_TYPES

N_SUMS = 8
WORTH_IT = 4 * N_SUMS  # channels of the result: with fewer, little is saved
CONVOLUTION, LINEAR, PRODUCT = "ConvolutionBackward0", "AddmmBackward0", "MmBackward0"
ACCUMULATE, TRANSPOSED, COPIED = "AccumulateGrad", "TBackward0", "ToCopyBackward0"
MAX_NODES = 6  # views and casts between a function and its parameter
EDGES = {CONVOLUTION: (0, 1, 2), LINEAR: (1, 2, 0), PRODUCT: (0, 1, None)}  # of input, weight and bias
SAVED_INPUT = {CONVOLUTION: "_saved_input", LINEAR: "_saved_mat1", PRODUCT: "_saved_self"}


class Signs:
    """Random signs of one measurement, the same for the same number of channels; no random state of others moves."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[int, torch.dtype, torch.device], torch.Tensor] = {}

    def of(self, n: int, like: torch.Tensor) -> torch.Tensor:
        """Return (n, N_SUMS) signs, scaled so that energies stay what they are on average."""
        key = (n, like.dtype, like.device)
        if key not in self._made:
            generator = torch.Generator("cpu").manual_seed(self._seed * 65_537 + n)
            signs = torch.randint(0, 2, (n, N_SUMS), generator=generator, device="cpu").mul_(2).sub_(1)
            self._made[key] = signs.to(like.device, like.dtype) / math.sqrt(N_SUMS)
        return self._made[key]

    def sketch(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sketch of a weight's gradient, whose rows are the channels of the result."""
        if gradient.layout is not torch.strided:  # of an embedding, say
            gradient = gradient.to_dense()
        gradient = _wide(gradient)
        return self.of(gradient.shape[0], gradient).mT @ gradient.flatten(1)


class Product:
    """One node; see the module's docstring."""

    __slots__ = ("bias", "input", "kind", "node", "weight")

    def __init__(self, node: Any) -> None:
        self.node, self.kind = node, type(node).__name__
        self.input, self.weight, self.bias = EDGES[self.kind]

    @property
    def x(self) -> torch.Tensor:
        """The input, as the node reads it."""
        return getattr(self.node, SAVED_INPUT[self.kind]).detach()

    @property
    def parameter(self) -> torch.Tensor | None:
        """The weight that a sketch is about: rows of its gradient are channels of the result; None where it is none."""
        node = self.node
        if self.kind == CONVOLUTION and (node._saved_groups > 1 or node._saved_transposed):
            return None
        following, n_transposed = node.next_functions[self.weight][0], 0
        for _ in range(MAX_NODES):
            kind = type(following).__name__
            if kind == ACCUMULATE:
                break
            if kind not in (TRANSPOSED, COPIED):
                return None
            n_transposed += kind == TRANSPOSED
            following = following.next_functions[0][0]
        else:
            return None
        leaf = following.variable
        has_rows = n_transposed == (self.kind != CONVOLUTION) and type(leaf) in PLAIN_TYPES and leaf.dim() >= 2
        return leaf if has_rows and leaf.shape[0] >= WORTH_IT else None

    def on_input(self, error: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.kind != CONVOLUTION:
            return error @ self.node._saved_mat2.detach().mT.conj()
        return convolution_backward(self.node, error, x, self.node._saved_weight.detach(), 0)

    def on_weight(self, error: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return conv_weight_gradient(self.node, error, x) if self.kind == CONVOLUTION else x.mT.conj() @ error

    def on_bias(self, error: torch.Tensor) -> torch.Tensor:
        """Return the bias's gradient, of which autograd may still have to sum over rows."""
        return error.sum([dim for dim in range(error.dim()) if dim != 1]) if self.kind == CONVOLUTION else error

    def sketch(self, error: torch.Tensor, x: torch.Tensor, signs: Signs) -> torch.Tensor:
        """Return the sketch of the weight's gradient; see Note [Sketches]."""
        error, x = _wide(error), _wide(x)
        rows = signs.of(error.shape[1], error).mT
        if self.kind != CONVOLUTION:
            return (rows @ error.mT) @ x  # in this order: BLAS takes four times as long for (error @ signs).mT
        sums = rows @ error.flatten(2)
        sums = sums.view(error.shape[0], N_SUMS, *error.shape[2:])
        following, slot = self.node.next_functions[self.weight]
        weight = x.new_empty((N_SUMS, *following._input_metadata[slot].shape[1:]))
        return convolution_backward(self.node, sums, x, weight, 1).flatten(1)

    def sketch_of(self, gradient: torch.Tensor, signs: Signs) -> torch.Tensor:
        """Return the same of the weight's gradient as the node has computed it."""
        return signs.sketch(gradient if self.kind == CONVOLUTION else gradient.mT)


def product_of(node: Any) -> Product | None:
    """Return the node as a product of an input and a parameter; None where it is something else."""
    kind = type(node).__name__
    if kind not in EDGES or (kind == LINEAR and not node._saved_alpha == node._saved_beta == 1):
        return None
    product = Product(node)
    if leaf_of(node, product.weight) is None:
        return None
    following, slot = node.next_functions[product.weight]
    return None if following._input_metadata[slot].dtype.is_complex else product


def leaf_of(node: Any, edge: int | None) -> torch.Tensor | None:
    """Return the leaf to which an edge of the node leads through views and casts; None where something is computed."""
    if edge is None or edge >= len(node.next_functions):
        return None
    following = node.next_functions[edge][0]
    for _ in range(MAX_NODES):
        if following is None:
            return None
        if type(following).__name__ == ACCUMULATE:
            return following.variable
        if len(following.next_functions) != 1:
            return None
        following = following.next_functions[0][0]
    return None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor so that sums of its values overflow no sooner than it does."""
    return tensor.float() if tensor.dtype is torch.float16 else tensor


def conv_weight_gradient(node: Any, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the weight's gradient of a convolution, for any gradient of its result and any input."""
    following, slot = node.next_functions[1]
    is_leaf = type(following).__name__ == ACCUMULATE and following.variable.dtype == x.dtype
    weight = following.variable.detach() if is_leaf else x.new_empty(following._input_metadata[slot].shape)
    return convolution_backward(node, grad, x, weight, 1)


def convolution_backward(node: Any, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, edge: int) -> Any:
    """Return the gradient of one of the two, input or weight, with the geometry of this node."""
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, node._saved_stride, node._saved_padding, node._saved_dilation,
        node._saved_transposed, node._saved_output_padding, node._saved_groups, (edge == 0, edge == 1, False),
    )[edge]  # fmt: skip
