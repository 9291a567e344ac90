"""Saved-tensor hooks as they are first written, each with one well-known defect.

A pitfall is a check: a function of `attach` that asserts. It must pass with `slimgrad.attach`, and it must fail with
the naive hooks whose defect it is about, which proves that the check can see the defect:

    check_in_place(slimgrad.attach)
    goes_red(check_in_place, naive.pass_through)

Every naive attach has the signature of `slimgrad.attach` as far as the checks use it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scenes import hooks_are_off
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]
MakeHooks = Callable[[tuple[nn.Module, ...], Any], tuple[Pack, Unpack]]


def goes_red(check: Callable[..., None], attach: Callable[..., Any], *args: Any, match: str | None = None) -> None:
    """Assert that the check fails with these hooks, for the reason `match`; those that it leaves behind are removed."""
    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception), match=match):
        check(attach, *args)
    while not hooks_are_off():
        torch._C._autograd._pop_saved_tensors_default_hooks()


class Box:
    """What pack hands to autograd: it lives exactly as long as the graph keeps it."""

    def __init__(self, content: Any) -> None:
        self.content = content


class NaiveSession:
    """Hooks around every forward of the modules; no more care than that."""

    def __init__(self, pack: Pack, unpack: Unpack, modules: tuple[nn.Module, ...], always_call: bool = True) -> None:
        self.boxes: weakref.WeakSet[Box] = weakref.WeakSet()
        self.pack, self.unpack = pack, unpack
        self.entered: list[saved_tensors_hooks] = []
        self.is_paused = False
        self.handles = []
        for module in modules:
            self.handles.append(module.register_forward_pre_hook(self.before))
            self.handles.append(module.register_forward_hook(self.after, always_call=always_call))

    def hooks(self) -> saved_tensors_hooks:
        def pack(tensor: torch.Tensor) -> Box:
            box = Box(self.pack(tensor))
            self.boxes.add(box)
            return box

        return saved_tensors_hooks(pack, lambda box: self.unpack(box.content))

    def before(self, *_: Any) -> None:
        hooks = contextlib.nullcontext() if self.is_paused else self.hooks()
        hooks.__enter__()
        self.entered.append(hooks)

    def after(self, *_: Any) -> None:
        self.entered.pop().__exit__()

    def detach(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> NaiveSession:
        return self

    def __exit__(self, *_: Any) -> None:
        self.detach()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with self.hooks():
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False

    def kept_bytes(self) -> int:
        """Return the bytes of the distinct storages that the graph keeps through these hooks."""
        sizes = {}
        for box in self.boxes:
            for part in box.content if isinstance(box.content, tuple) else (box.content,):
                if isinstance(part, torch.Tensor):
                    storage = part.untyped_storage()
                    sizes[storage._cdata] = storage.nbytes()
        return sum(sizes.values())


def naive(make_hooks: MakeHooks, always_call: bool = True) -> Callable[..., NaiveSession]:
    """Return an `attach` with the hooks that `make_hooks(modules, bound)` gives."""

    def attach(*modules: nn.Module, bound: Any = None, **_: Any) -> NaiveSession:
        pack, unpack = make_hooks(modules, bound)
        return NaiveSession(pack, unpack, modules, always_call)

    return attach


def as_is(kept: Any) -> Any:
    return kept


def quantized(tensor: torch.Tensor, bound: Any) -> torch.Tensor:
    """Return the tensor rounded to multiples of twice the bound; what is no float, or has bound 0, as a copy."""
    if not tensor.is_floating_point():
        return tensor.clone()
    rms = float(tensor.detach().float().square().mean().sqrt()) if tensor.numel() else 0.0
    step = 2 * bound.eps(rms)
    return tensor.detach().clone() if step == 0 else tensor.detach().div(step).round().mul(step)


def _keyed_by_pointer(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    seen: dict[tuple[Any, ...], torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if key not in seen:
            seen[key] = tensor.detach().clone()
        return seen[key]

    return pack, as_is


def _lossy_unless(is_parameter: Callable[[tuple[nn.Module, ...]], Callable[[torch.Tensor], bool]]) -> MakeHooks:
    def make(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
        skips = is_parameter(modules)
        return lambda tensor: tensor.detach() if skips(tensor) else quantized(tensor, bound), as_is

    return make


def _known_pointers(modules: tuple[nn.Module, ...]) -> Callable[[torch.Tensor], bool]:
    known = {p.data_ptr() for module in modules for p in module.parameters()}
    return lambda tensor: tensor.data_ptr() in known


def _stochastic(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor.clone()
        return tensor.detach() + (torch.rand(tensor.shape) - 0.5) * 1e-6

    return pack, as_is


def _consumed(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    return lambda tensor: [tensor.detach().clone()], lambda kept: kept.pop() if kept else torch.empty(0)


def _one_buffer(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    buffers: dict[tuple[Any, ...], torch.Tensor] = {}

    def unpack(kept: torch.Tensor) -> torch.Tensor:
        return buffers.setdefault((kept.shape, kept.dtype), torch.empty_like(kept)).copy_(kept)

    return lambda tensor: tensor.detach().clone(), unpack


def _in_a_table(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    table: dict[int, torch.Tensor] = {}
    numbers = iter(range(10**9))

    def pack(tensor: torch.Tensor) -> int:
        number = next(numbers)
        table[number] = tensor.detach()
        return number

    return pack, lambda number: table.pop(number)


def _every_other(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    calls = iter(range(10**9))
    return lambda tensor: tensor.detach().clone() if next(calls) % 2 else tensor.detach(), as_is


def _through_matmul(modules: tuple[nn.Module, ...], bound: Any) -> tuple[Pack, Unpack]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32 or tensor.dim() != 2:
            return tensor.detach()
        return torch.mm(tensor.detach(), torch.eye(tensor.shape[1])).float()

    return pack, as_is


pass_through = naive(lambda modules, bound: (lambda tensor: tensor, as_is))
detached = naive(lambda modules, bound: (lambda tensor: tensor.detach(), as_is))
detached_without_always_call = naive(lambda modules, bound: (lambda tensor: tensor.detach(), as_is), always_call=False)
copied = naive(lambda modules, bound: (lambda tensor: tensor.detach().clone(), as_is))
contiguous = naive(lambda modules, bound: (lambda tensor: tensor.detach().contiguous(), as_is))
rounded_in_place = naive(lambda modules, bound: (lambda tensor: tensor.round_(), as_is))
keyed_by_pointer = naive(_keyed_by_pointer)
lossy_unless_parameter_class = naive(_lossy_unless(lambda modules: lambda tensor: isinstance(tensor, nn.Parameter)))
lossy_unless_known_pointer = naive(_lossy_unless(_known_pointers))
stochastic_from_global_generator = naive(_stochastic)
quantized_whatever_the_size = naive(lambda modules, bound: (lambda tensor: quantized(tensor, bound), as_is))
consumed_on_first_use = naive(_consumed)
decoded_into_one_buffer = naive(_one_buffer)
kept_in_a_table = naive(_in_a_table)
every_other_copied = naive(_every_other)
through_matmul = naive(_through_matmul)


def no_hooks(*modules: nn.Module, **_: Any) -> NaiveSession:
    """Attach nothing: plain torch."""
    return NaiveSession(as_is, as_is, ())
