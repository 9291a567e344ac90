"""How sparse activations are, and what codes make of that: the study of cDMA, on any model and at any moment.

    layers = observe(model, batch)          one forward in training mode that leaves no trace in the model

Looked at are the outputs of activation functions and of pooling, which is what cDMA compressed. Lossless codes (zvc,
rle, deflate) see the values as they are; `nested` rounds under Relative(0.25), the start of every adaptive bound.
Entropy is that of the rounded levels, value by value: what a lossy code without context cannot go below.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from slimgrad import codecs
from slimgrad.bounds.fixed import Relative
from slimgrad.lab.samples import rms_of_nonzero

ACTIVATIONS = (
    nn.ReLU,
    nn.ReLU6,
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Sigmoid,
    nn.Tanh,
)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
CODES = ("nested", "zvc", "rle", "deflate")  # ours first: tables are wider than many screens
LAYOUTS = ("NCHW", "NHWC")
REL = 0.25
MOST_VALUES = 1 << 17  # of a tensor, whole examples of it: deflate is slow
NO_ACTIVATIONS = "no activation function is a module here"
TILES, TILE_GAP = 4, 1  # pictures show 4 x 4 channels


class Layer(NamedTuple):
    """One observed tensor."""

    name: str
    is_pool: bool
    shape: tuple[int, ...]  # without the batch
    density: float  # share of values that are not zero
    entropy: float  # bits per value
    ratios: dict[str, dict[str, float]]  # by layout and code
    picture: list[bytes]  # where the first example is not zero, channels as tiles; [] unless it is a map


def observe(model: nn.Module, x: torch.Tensor) -> list[Layer]:
    """Return the layers in the order in which they run; none of a model whose activations are no modules."""
    found: list[Layer] = []
    calls: Counter[str] = Counter()

    def hook(name: str, is_pool: bool) -> Callable[[Any, Any, Any], None]:
        def note(module: Any, args: Any, out: torch.Tensor) -> None:
            calls[name] += 1
            own_name = name if calls[name] == 1 else f"{name} ({calls[name]})"  # one module may stand in several places
            found.append(layer_of(own_name, is_pool, out.detach()))

        return note

    watched = {name: m for name, m in model.named_modules() if isinstance(m, (*ACTIVATIONS, *POOLS))}
    handles = [m.register_forward_hook(hook(name, isinstance(m, POOLS))) for name, m in watched.items()]
    try:
        with _left_as_it_was(model), torch.no_grad():
            model.train()(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put buffers, mode and random state back at the end."""
    buffers, was_training = [(b, b.clone()) for b in model.buffers()], model.training
    with torch.random.fork_rng(devices=[]):
        yield
    for buffer, before in buffers:
        buffer.copy_(before)
    model.train(was_training)


def layer_of(name: str, is_pool: bool, out: torch.Tensor) -> Layer:
    """Return what there is to know about one output."""
    examples = max(1, MOST_VALUES // max(1, out[0].numel()))
    some = out[:examples].float().contiguous()
    layouts = {"NCHW": some}
    if some.dim() == 4:
        layouts["NHWC"] = some.contiguous(memory_format=torch.channels_last)
    ratios = {layout: {code: _ratio(tensor, code) for code in CODES} for layout, tensor in layouts.items()}
    density = float(torch.count_nonzero(out)) / max(1, out.numel())
    return Layer(name, is_pool, tuple(out.shape[1:]), density, entropy(some), ratios, picture(out))


def _ratio(tensor: torch.Tensor, code: str) -> float:
    bound = None if codecs.get(code).is_lossless else Relative(REL)
    return tensor.nbytes / codecs.encode(tensor, code, bound).nbytes


def entropy(tensor: torch.Tensor) -> float:
    """Return the order-0 entropy in bits per value, rounded to steps of 2 x REL x RMS; zero is a level of its own."""
    rms = rms_of_nonzero(tensor)
    if rms == 0.0:
        return 0.0
    levels = torch.ceil(tensor.abs() / (2 * REL * rms)) * tensor.sign()
    counts = levels.flatten().unique(return_counts=True)[1].double()
    shares = counts / counts.sum()
    return float(-(shares * shares.log2()).sum())


def picture(out: torch.Tensor) -> list[bytes]:
    """Return where the first example is not zero, white, as tiles of its first channels."""
    if out.dim() != 4 or out.shape[-1] < TILES:
        return []
    _, channels, height, width = out.shape
    side = min(TILES, math.isqrt(channels))
    if not side:
        return []
    canvas = torch.full((side * (height + TILE_GAP), side * (width + TILE_GAP)), 96, dtype=torch.uint8)
    for number in range(side * side):
        top, left = (number // side) * (height + TILE_GAP), (number % side) * (width + TILE_GAP)
        canvas[top : top + height, left : left + width] = (out[0, number] != 0).byte() * 255
    return [bytes(row) for row in canvas.tolist()]


class Observation(NamedTuple):
    """One claim of the study, and whether it holds here; None where the model cannot tell."""

    claim: str
    holds: bool | None
    found: str


def observations(course: Mapping[float, Sequence[Layer]]) -> list[Observation]:
    """Return the four claims of cDMA, checked on layers observed at shares of a training, from 0 to 1."""
    times = sorted(course)
    names = [(layer.name, layer.is_pool) for layer in course[times[0]]]
    density = {name: [course[t][i].density for t in times] for i, (name, _) in enumerate(names)}
    acts = [name for name, is_pool in names if not is_pool]
    return [_first(density, acts), _pooling(density, names), _u_shape(density, acts), _depth(density, acts)]


def _first(density: Mapping[str, Sequence[float]], acts: Sequence[str]) -> Observation:
    claim = "the first layer stays about half dense"
    if not acts:
        return Observation(claim, None, NO_ACTIVATIONS)
    values = density[acts[0]]
    found = f"{acts[0]}: {', '.join(f'{v:.0%}' for v in values)}"
    return Observation(claim, all(0.4 <= v <= 0.6 for v in values), found)


def _pooling(density: Mapping[str, Sequence[float]], names: Sequence[tuple[str, bool]]) -> Observation:
    claim = "pooling always raises density"
    pairs = [(before, name) for (before, _), (name, is_pool) in pairwise(names) if is_pool]
    changes = [after - b for first, second in pairs for b, after in zip(density[first], density[second], strict=True)]
    if not changes:
        return Observation(claim, None, "no pooling in this model")
    rises = sum(change > 0 for change in changes)
    found = f"in {rises} of {len(changes)} cases, by {100 * sum(changes) / len(changes):+.0f} points on average"
    return Observation(claim, rises == len(changes), found)


def _u_shape(density: Mapping[str, Sequence[float]], acts: Sequence[str]) -> Observation:
    claim = "density falls early and then creeps up"
    if not acts:
        return Observation(claim, None, NO_ACTIVATIONS)
    if len(density[acts[0]]) < 3:
        return Observation(claim, None, "fewer than three moments of training")
    bent = [n for n in acts if min(density[n][1:-1]) < density[n][0] and min(density[n][1:-1]) < density[n][-1]]
    means = [sum(density[name][i] for name in acts) / len(acts) for i in range(len(density[acts[0]]))]
    found = f"{len(bent)} of {len(acts)} layers; mean {', '.join(f'{v:.0%}' for v in means)}"
    return Observation(claim, 2 * len(bent) > len(acts), found)


def _depth(density: Mapping[str, Sequence[float]], acts: Sequence[str]) -> Observation:
    claim, last = "deeper layers are sparser", [density[name][-1] for name in acts]
    if len(acts) < 3:
        return Observation(claim, None, "fewer than three layers")
    if min(last) == max(last):
        return Observation(claim, None, f"all layers are equally dense, {last[0]:.0%}")
    ranks = [sum(a < b for a in last) + sum(a == b for a in last) / 2 for b in last]  # of equals, their mean
    rho = statistics.correlation(range(len(last)), ranks)
    found = f"rank correlation of depth and density {rho:+.2f}; first {last[0]:.0%}, last {last[-1]:.0%}"
    return Observation(claim, rho < -0.3, found)
