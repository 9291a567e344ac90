"""Whole blocks run again in backward instead of stored, as torch.utils.checkpoint does, on a model that stays as it is.

    blocks.begin(module, path, args, kwargs)       before a block's forward, under the session's own hooks
    blocks.end(module)                             after it

What a block saves is not stored. The first time that backward reads any of it, the block's forward runs again from its
inputs, with the random state and autocast of the first time, as far as the last tensor that is needed. That is torch's
own code (the non-reentrant checkpoint); this file decides where, and keeps what torch does not:

Note [Statistics once]. A forward that runs twice would update batch-norm statistics twice. The block's buffers are
taken down before it runs again and put back after.

Note [The boundary]. A block's inputs are saved by torch under the hooks around the block, which are ours: positional
tensors are kept bit for bit, by reference, losslessly coded or on disk as the policy says. A lossy boundary would
change masks and statistics inside; no policy asks for it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator as checkpointed
from torch.utils.checkpoint import noop_context_fn

from slimgrad.errors import ConfigError

CONTAINERS = (nn.Sequential, nn.ModuleList)


class Blocks:
    """Which modules are run again, and those of them that run now, by thread."""

    def __init__(self, paths: Mapping[int, str], modules: list[nn.Module], patterns: Sequence[str] | None) -> None:
        named = {path: module for module in modules if (path := paths.get(id(module))) is not None}
        chosen = _repeated(named) if patterns is None else _matching(named, patterns)
        self.paths = frozenset(chosen)
        if not self.paths:
            raise ConfigError(
                f"expected blocks that are modules of the model, got {patterns!r}, which match none of "
                f"{', '.join(list(named)[:8])} ...; write slimgrad.Recompute(blocks=['layer1.*', ...])"
            )
        self._threads = threading.local()

    @property
    def _running(self) -> list[tuple[nn.Module, Iterator[None]]]:
        if not hasattr(self._threads, "running"):
            self._threads.running = []
        return self._threads.running

    def begin(self, module: nn.Module, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> None:
        """Have what this forward saves computed again, if the module is a block."""
        if path not in self.paths or self._running:
            return

        def again(*args: Any, **kwargs: Any) -> None:
            with _buffers_as_now(module):
                module(*args, **kwargs)

        block = checkpointed(again, True, noop_context_fn, "default", False, True, *args, **(kwargs or {}))
        next(block)
        self._running.append((module, block))

    def end(self, module: object) -> None:
        """End the block's forward, also when it raised."""
        if self._running and self._running[-1][0] is module:
            _, block = self._running.pop()
            next(block, None)

    def end_all(self) -> None:
        """End what an interrupt has left; see Note [Interrupted forwards] in recorder.py."""
        while self._running:
            next(self._running.pop()[1], None)


@contextlib.contextmanager
def _buffers_as_now(module: nn.Module) -> Iterator[None]:
    """Put the module's buffers back afterwards; Note [Statistics once]."""
    held = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for part, name, buffer, values in held:
            buffer.data.copy_(values)  # .data: not a change that autograd should know of
            part._buffers[name] = buffer


def _repeated(named: Mapping[str, nn.Module]) -> list[str]:
    """Return residual blocks and layers of transformers: what containers hold and has modules of its own.

    A Sequential counts if it holds nothing of the kind itself: a stage of convolutions, not a stage of blocks.
    """
    held = [
        path
        for path, module in named.items()
        if path
        and next(module.children(), None) is not None
        and isinstance(named.get(path.rpartition(".")[0]), CONTAINERS)
    ]
    whole = _outermost([path for path in held if not isinstance(named[path], CONTAINERS)])
    stages = [path for path in held if isinstance(named[path], nn.Sequential) and not _is_within(path, whole)]
    return whole + [path for path in stages if not any(_is_within(other, [path]) for other in held)]


def _matching(named: Mapping[str, nn.Module], patterns: Sequence[str]) -> list[str]:
    return _outermost([path for path in named if path and any(fnmatch.fnmatchcase(path, p) for p in patterns)])


def _outermost(paths: list[str]) -> list[str]:
    return [path for path in paths if not _is_within(path, paths)]


def _is_within(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)
