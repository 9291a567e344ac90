"""Which modules are attached, under which paths, and which bound holds where.

Modules are held weakly: a session does not keep a model alive, and ends when the last of its models is gone.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from slimgrad.bounds.base import Adaptive
from slimgrad.errors import ConfigError
from slimgrad.origins import PLAIN_TYPES

functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
MAX_DEPTH = 4  # of nested arguments and results
_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # roots of all sessions


class Attached:
    """The modules of one session. The first root's modules go by their own names, those of others after their class."""

    def __init__(self, roots: tuple[nn.Module, ...], bound: Adaptive, rules: Mapping[str, Adaptive]) -> None:
        _check(roots, bound, rules)
        self.bound, self.rules = bound, dict(rules)
        self.root_paths: set[str] = set()
        self._roots = weakref.WeakSet(roots)
        self.paths: dict[int, str] = {}  # by id: looked up at every call of every module
        self._modules: dict[int, weakref.ref[nn.Module]] = {}  # ... and removed with the module, before its id is free
        self._bounds: dict[str, Adaptive] = {}
        for number, root in enumerate(dict.fromkeys(roots)):
            prefix = "" if number == 0 else self._unused(type(root).__name__)
            self.root_paths.add(prefix)
            for name, module in root.named_modules():
                self._add(module, f"{prefix}.{name}".strip("."))
        self._idle_rules = [rule for rule in rules if not any(_matches(path, rule) for path in self.paths.values())]
        _attached.update(roots)

    def _add(self, module: nn.Module, path: str) -> None:
        key, paths, modules = id(module), self.paths, self._modules
        if key in paths:
            return

        def died(_: object) -> None:
            paths.pop(key, None)
            modules.pop(key, None)

        paths[key] = path
        modules[key] = weakref.ref(module, died)

    def path_of(self, module: nn.Module) -> str | None:
        """Return the module's path; None where it is not attached."""
        return self.paths.get(id(module))

    def bound_of(self, path: str) -> Adaptive:
        """Return the bound for tensors saved in the module at this path: that of the first rule that matches."""
        bound = self._bounds.get(path)
        if bound is None:
            matches = (rule for pattern, rule in self.rules.items() if _matches(path, pattern))
            bound = self._bounds[path] = next(matches, self.bound)
        return bound

    def remarks(self) -> list[str]:
        """Return the rules that hold nowhere: a wrong letter leaves a layer under another bound."""
        known = [path for path in self.paths.values() if path]
        some = ", ".join(known[:4]) + (" ..." if len(known) > 4 else "")
        return [f"rules={{{rule!r}: ...}} matches no attached module; they are {some}" for rule in self._idle_rules]

    def constants(self) -> set[torch.UntypedStorage]:
        """Return the storages of all parameters and buffers, as they are now."""
        modules = self._living().values()
        return storages_of([(*module._parameters.values(), *module._buffers.values()) for module in modules])

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return all parameters by path, each once."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for path, module in self._living().items():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    found.setdefault(id(parameter), (f"{path}.{name}".strip("."), parameter))
        return dict(found.values())

    def buffers(self) -> list[torch.Tensor]:
        """Return all buffers, each once."""
        found = [buffer for module in self.modules() for buffer in module._buffers.values() if buffer is not None]
        return list({id(buffer): buffer for buffer in found}.values())

    def modules(self) -> list[nn.Module]:
        """Return the attached modules that are alive."""
        return list(self._living().values())

    def _living(self) -> dict[str, nn.Module]:
        modules = [(self.paths.get(key), reference()) for key, reference in list(self._modules.items())]
        return {path: module for path, module in modules if path is not None and module is not None}

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Call back, a method of whoever is alive then, when the last of the roots has died."""
        living = len(self._roots)  # counted here: a weak set may still count the one that is dying
        method = weakref.WeakMethod(callback)  # else every session that a model ever had would live as long as it

        def one_died() -> None:
            nonlocal living
            living -= 1
            if not living and (alive := method()) is not None:
                alive()

        for root in list(self._roots):
            weakref.finalize(root, one_died).atexit = False

    def release(self) -> None:
        """Allow the modules to be attached again."""
        for root in list(self._roots):
            _attached.discard(root)

    def _unused(self, name: str) -> str:
        number, prefix = 1, name
        while prefix in self.root_paths:
            number += 1
            prefix = f"{name}{number}"
        return prefix


def has_ended(caller: FrameType | None) -> bool:
    """Return whether this Python frame runs no more."""
    try:
        if caller is not None:
            caller.clear()
    except RuntimeError:  # only an ended frame can be cleared
        return False
    return caller is not None


def storages_of(values: Any) -> set[torch.UntypedStorage]:
    """Return the storages of the plain tensors in nested values that autograd did not make."""
    return {
        tensor.untyped_storage()
        for tensor in tensors_in(values)
        if tensor.grad_fn is None and type(tensor) in PLAIN_TYPES and _has_storage(tensor)
    }


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not functorch.is_functorch_wrapped_tensor(tensor)


def tensors_in(value: Any, depth: int = MAX_DEPTH, in_objects: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, dicts and dataclasses; in attributes of other objects too where wanted."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1, in_objects)
    elif depth and isinstance(value, (dict, Mapping)):  # asked late: an abstract class takes long to answer
        yield from tensors_in(list(value.values()), depth, in_objects)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors_in(
            [getattr(value, field.name, None) for field in dataclasses.fields(value)], depth, in_objects
        )
    elif depth and in_objects and hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        yield from tensors_in(list(vars(value).values()), depth, in_objects)


def _matches(path: str, pattern: str) -> bool:
    # "layer1.*" means all of layer1, and so also what its own forward saves
    return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(f"{path}.", pattern)


def _check(roots: tuple[nn.Module, ...], bound: Adaptive, rules: Mapping[str, Adaptive]) -> None:
    for root in roots:
        if not isinstance(root, nn.Module):
            raise ConfigError(f"attach expected torch.nn.Module objects, got {type(root).__name__}; {_by_name(root)}")
        if root in _attached:
            raise ConfigError(
                f"expected a {type(root).__name__} that is not attached, got one that is; "
                "call detach() on its session first"
            )
    if not isinstance(rules, Mapping) or not all(isinstance(pattern, str) for pattern in rules):
        raise ConfigError(
            "expected rules to map patterns of module paths to bounds, "
            f"got {rules!r}; write rules={{'layer1.*': slimgrad.Exact()}}"
        )
    _check_bound("bound", "bound=", bound)
    for pattern, rule in rules.items():
        _check_bound(f"rules[{pattern!r}]", f"{pattern!r}: ", rule)


def _check_bound(name: str, prefix: str, value: Any) -> None:
    if isinstance(value, type) or not hasattr(value, "at"):
        is_bound = isinstance(value, type) and hasattr(value, "at")
        advice = f"; write {prefix}slimgrad.{value.__name__}(...), with its parentheses" if is_bound else ""
        raise ConfigError(
            f"expected {name} to be a bound, such as Noise(0.05), Relative(0.25) or Exact(), got {value!r}{advice}"
        )


def _by_name(value: Any) -> str:
    """Return what to type instead of an argument that is no module."""
    if hasattr(value, "at"):
        return f"write slimgrad.attach(model, bound={value!r})"
    if hasattr(value, "plan"):
        return f"write slimgrad.attach(model, policy={value!r})"
    if hasattr(value, "param_groups"):
        return "write slimgrad.attach(model, optimizer=optimizer)"
    return "for code outside of modules use: with session.recording(): ..."
