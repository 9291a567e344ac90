"""Nodes called as they would run if nothing were coded: what autograd computes, less that, is the error behind them.

    without_errors(node, grads, read, streams, stream)      before a node runs that reads what these Stored keep
    compare(node, inputs, outputs, streams)                 when it has run

One call says what a node's own codes do and what becomes of the errors that have arrived, with all that they do to each
other. Of a convolution or linear layer only products are computed: the input's gradient does not contain the input, and
of the weight's a sketch will do where streams say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from slimgrad.local_errors import Slots, exactly, minus
from slimgrad.products import product_of
from slimgrad.readers import Grads
from slimgrad.saved import Stored
from slimgrad.streams import Streams, call

CALLED, SKETCHED = "slimgrad.at_once", "slimgrad.sketched"  # in the metadata of a node, by stream


def without_errors(
    node: Any, grads: Grads, read: Sequence[tuple[Stored, Slots]], streams: Streams, stream: str
) -> None:
    """Call a node with the originals in place and for the gradient without the errors that have arrived."""
    errors = streams.take(node, stream, len(grads))
    exact = [grad if error is None or grad is None else grad - error for grad, error in zip(grads, errors, strict=True)]
    product = product_of(node)
    parameter = None if product is None else streams.sketched_by(product)
    with contextlib.ExitStack() as stack:
        for stored, slots in read:
            stack.enter_context(exactly(stored, [saved for _, saved in slots]))
        if product is None or parameter is None or streams.signs is None or exact[0] is None:
            node.metadata.setdefault(CALLED, {})[stream] = call(node, exact)
            return
        x = product.x
        sketch = product.sketch(exact[0], x, streams.signs)
        node.metadata.setdefault(SKETCHED, {})[stream] = sketch  # not the product: it holds the node
        if errors[0] is not None:
            streams.beside_weight(product, x, stream, errors[0])


def compare(node: Any, inputs: Grads, outputs: Grads, streams: Streams) -> None:
    """Let the errors that autograd's results have leave the node."""
    called, sketched = node.metadata.pop(CALLED, {}), node.metadata.pop(SKETCHED, {})
    results = [one for exact in called.values() for one in exact]
    for stream, exact in called.items():
        for edge, (before, after) in enumerate(zip(exact, inputs, strict=True)):
            if before is not None and after is not None:
                others = *outputs, *(one for one in results if one is not before)
                following, slot = node.next_functions[edge]
                streams.add(following, slot, stream, minus(after, before, others))
    if not sketched:
        return
    product = product_of(node)
    assert product is not None and streams.signs is not None
    parameter, after = streams.sketched_by(product), inputs[product.weight]
    if parameter is None or after is None:  # a backward for some tensors alone computes no others' gradients
        return
    whole = product.sketch_of(after, streams.signs)
    for stream, before in sketched.items():
        streams.add_sketch(parameter, stream, whole - before)
