"""attach(): where a session begins, and where it ends.

The model carries nothing: hooks are global module hooks that look up which modules are attached, so a deep copy or a
pickle of an attached model is plain. What they do is in recorder.py.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slimgrad.attached import Attached
from slimgrad.audit import Audit, audit
from slimgrad.blocks import Blocks
from slimgrad.bounds import Noise
from slimgrad.bounds.base import Adaptive
from slimgrad.errors import ConfigError
from slimgrad.ledger import Ledger
from slimgrad.policy import AUTO, Compress, Policy, Recompute, check_policy
from slimgrad.progress import Progress
from slimgrad.recorder import Recorder, is_tracing
from slimgrad.report import Report
from slimgrad.report.memory import PeakMeter
from slimgrad.saved import Rebuilt
from slimgrad.shelf import Shelf
from slimgrad.simple import OwnHooks
from slimgrad.tuning import Tuning

if TYPE_CHECKING:
    from slimgrad.planner.planned import Planned

DEFAULT_BOUND, DEFAULT_POLICY = Noise(0.05), Compress()


def attach(
    model: nn.Module,
    *others: nn.Module,
    bound: Adaptive = DEFAULT_BOUND,
    policy: Policy = DEFAULT_POLICY,
    optimizer: torch.optim.Optimizer | None = None,
    rules: Mapping[str, Adaptive] | None = None,
    min_bytes: int = 4096,
    seed: int = 0,
) -> Session:
    """Keep what the forwards of these modules save for backward compressed under `bound`, until detach().

    Pass the criterion among `others`, because the loss saves tensors too. `rules` maps patterns of module paths to
    other bounds; the first that matches holds. Tensors below `min_bytes` stay as they are. `seed` is for codes that
    draw random numbers, which none of today's does.
    """
    return Session((model, *others), bound, policy, rules or {}, min_bytes, optimizer)


class Session:
    """Hooks on the forwards of some modules, from attach() to detach(). Also a context manager."""

    def __init__(
        self,
        modules: tuple[nn.Module, ...],
        bound: Adaptive,
        policy: Policy,
        rules: Mapping[str, Adaptive],
        min_bytes: int,
        optimizer: torch.optim.Optimizer | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        check_policy(policy)
        if not isinstance(min_bytes, int) or min_bytes < 0:
            raise ConfigError(f"expected min_bytes to be a number of bytes, got {min_bytes!r}; the default is 4096")
        self.shelf = shelf or Shelf(Ledger(), policy)  # first: it may refuse, and the model is free then
        self.attached = Attached(modules, bound, rules)
        self._paths = self.attached.paths
        self.policy, self.min_bytes = policy, min_bytes
        try:
            self.blocks = self._blocks_of(policy)
            self.planned: Planned | None = policy.begin() if hasattr(policy, "begin") else None  # pyright: ignore
            self.tuning = Tuning(self.attached, optimizer)
        except BaseException:
            self.attached.release()  # the model can be attached again, with what was missing
            raise
        self.progress = Progress(self.shelf, self.tuning)
        self.rebuilt: weakref.WeakSet[Rebuilt] = weakref.WeakSet()
        self._meter = PeakMeter()
        self.last_audit: Audit | None = None
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._n_active = 0  # forwards that are recorded now, in all threads
        self.is_attached = True
        self.attached.when_gone(self.detach)
        self._handles = [
            OwnHooks(self._before, self._after),
            register_optimizer_step_pre_hook(self._before_step),
        ]

    def _blocks_of(self, policy: Policy) -> Blocks | None:
        if not isinstance(policy, Recompute) or policy.blocks is None:
            return None
        return Blocks(self._paths, self.attached.modules(), None if policy.blocks == AUTO else policy.blocks)

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # compiled graphs save their tensors when they run, under the hooks of whoever calls them
        path = self._paths.get(id(module))
        if path is not None and self.is_attached:
            recorder = self._recorder
            if path == "" and self.planned is not None and not recorder.is_on and _may_record():
                self.planned.before_forward(self, module, args)
            recorder.enter(module, path, args)
            if self.blocks is not None and recorder.is_on:
                self.blocks.begin(module, path, args, sys._getframe(1).f_locals.get("kwargs"))

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling() and id(module) in self._paths:
            if self.blocks is not None:
                self.blocks.end(module)
            recorder = self._recorder
            recorder.leave(module, result)
            if self.tuning.meter.is_on and (not recorder.is_on or self._paths[id(module)] in self.attached.root_paths):
                self.tuning.meter.watch(result)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """The optimizer is about to change the parameters: copies of them that backward still needs are made now."""
        self.tuning.meter.scale.before_step(optimizer)
        for rebuilt in list(self.rebuilt):
            rebuilt.keep_copy()

    @property
    def _recorder(self) -> Recorder:
        try:
            return self._threads.recorder
        except AttributeError:
            recorder = self._threads.recorder = Recorder(self)
            return recorder

    def detach(self) -> None:
        """Remove all hooks and give pooled memory back; graphs that exist can still be run backward."""
        with contextlib.ExitStack() as steps:  # the last comes first, and each has its turn whatever others raise
            steps.callback(self.shelf.close)
            steps.callback(self.attached.release)
            steps.callback(self._end_hooks)
            steps.callback(self.tuning.meter.close)
            steps.callback(self._recorder.remove)

    def _end_hooks(self) -> None:
        with self._lock:
            self.is_attached = False
        self._remove_handles()

    def _remove_handles(self) -> None:
        """Remove the module hooks, unless a forward in another thread still has to end."""
        with self._lock:
            if self.is_attached or self._n_active:
                return
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def begin_forward(self) -> None:
        with self._lock:
            self._n_active += 1
        self.progress.begin_forward()

    def end_forward(self) -> None:
        with self._lock:
            self._n_active -= 1
        if not self.is_attached:
            self._remove_handles()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record code outside of the modules, in this thread."""
        recorder, token = self._recorder, object()
        if not recorder.is_on and torch.is_grad_enabled() and self.is_attached:
            recorder.install(token, "", None)
        try:
            yield
        finally:
            recorder.leave(token)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Leave tensors alone, in this thread."""
        return self._recorder.suspended()

    def report(self) -> Report:
        """Return what was saved, how small it became, and what memory it took."""
        self.progress.begin_forward()  # whatever comes next belongs to the next step
        storage = {"pools at most": self.shelf.arena.nbytes_peak, **self.shelf.tiers.sizes()}
        remarks = (
            self.attached.remarks()
            + self.progress.remarks()
            + self.shelf.tiers.remarks()
            + ([] if self.planned is None else self.planned.remarks())
            + ([] if self.last_audit is None else [self.last_audit.summary()])
        )
        return Report(self.shelf.ledger.snapshot(), storage, self._meter.read(), remarks)

    def audit(self, fn: Callable[[], torch.Tensor]) -> Audit:
        """Return how far the compressed gradient of the loss that fn() returns is from the exact one; see audit.py."""
        self.last_audit = audit(self, self._recorder, fn)
        return self.last_audit

    def kept_bytes(self) -> int:
        """Return the bytes that autograd's graphs keep through this session right now, each storage once.

        Neither tensors below min_bytes are counted nor those that somebody else keeps: parameters, buffers, inputs.
        """
        return self.shelf.nbytes_kept() + sum(r.copy.nbytes for r in list(self.rebuilt) if r.copy is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on as this one would."""
        plan = {} if self.planned is None else {"plan": self.planned.state_dict()}
        return {**self.progress.state_dict(), **plan}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.progress.load_state_dict(state)
        if self.planned is not None and "plan" in state:
            self.planned.load_state_dict(state["plan"])

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def _may_record() -> bool:
    """Return whether a forward that begins now can be recorded."""
    return torch.is_grad_enabled() and not is_tracing()
