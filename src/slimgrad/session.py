"""attach(): saved-tensor hooks around every forward that records gradients, and what they do.

    forward    pack: role -> the Stored of that storage -> plan -> code -> arena
    backward   unpack: arena -> decode into a pooled buffer -> the view as it was

This is the only file that installs hooks. The model carries nothing: hooks are global module hooks that look up which
modules are attached, so a deep copy or a pickle of an attached model is plain.

Note [Who records]. Per thread, the outermost attached module whose forward runs with gradients on installs one pair of
saved-tensor hooks and one function mode, and removes both when it returns or raises. Torch runs only the innermost
pair: checkpoint's own pair inside our forward keeps working, and inside checkpoint's (its first forward, and when it
computes a block again) we install nothing, because ours would hide it.

Note [Interrupted forwards]. Torch calls no forward hooks after KeyboardInterrupt. What such a forward leaves behind is
found by its frame, which runs no more, when the next outermost forward begins, or on detach().
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from slimgrad.attached import Attached, Running, has_ended, storages_of
from slimgrad.bounds import Relative
from slimgrad.consumers import COMPOSITES, Call, role_of
from slimgrad.errors import ConfigError
from slimgrad.ledger import BUFFER, INPUT, PARAMETER, SMALL, Ledger
from slimgrad.policy import Compress, Policy, RoleBound, check_policy
from slimgrad.report import Report
from slimgrad.report.memory import PeakMeter
from slimgrad.roles import Need, Role, role_from_dict, role_to_dict
from slimgrad.saved import Kept, Packed, Passed, Rebuilt, Saved, Shaped, Stored, find, is_codable
from slimgrad.shelf import Shelf

autograd = torch._C._autograd
PLAIN_CALLS = frozenset({(), (torch.Tensor,)})  # classes with a __torch_function__ of their own in a call's arguments
DEFAULT_BOUND, DEFAULT_POLICY = Relative(0.25), Compress()
HINTED = (Need.VALUES, Need.TIGHT, Need.EXACT)
FUNCTIONAL_ADVICE = "torch.func cannot see through saved-tensor hooks, call it under: with session.paused(): ..."
FOREIGN = "other saved-tensor hooks around an attached module get only what slimgrad leaves as it is: {}"
IN_CHECKPOINT = "inside torch.utils.checkpoint"


def attach(
    model: nn.Module,
    *others: nn.Module,
    bound: RoleBound = DEFAULT_BOUND,
    policy: Policy = DEFAULT_POLICY,
    optimizer: torch.optim.Optimizer | None = None,
    rules: Mapping[str, RoleBound] | None = None,
    min_bytes: int = 4096,
    seed: int = 0,
) -> Session:
    """Keep what the forwards of these modules save for backward compressed under `bound`, until detach().

    Pass the criterion among `others`, because the loss saves tensors too. `rules` maps patterns of module paths to
    other bounds; the first that matches holds. Tensors below `min_bytes` stay as they are.
    """
    return Session((model, *others), bound, policy, rules or {}, min_bytes)


class Recorder(TorchFunctionMode):
    """The hooks of one session in one thread. As a function mode it knows which torch function is running."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.shelf = session.shelf
        self.min_bytes = session.min_bytes
        self.hooks = (self.pack, self.unpack)
        self.call: Call | None = None
        self.running = Running()
        self.n_paused = 0
        self.is_on = False
        self.owner = 0  # number of running forwards when the hooks were installed
        self.caller: FrameType | None = None  # Note [Interrupted forwards]
        self.outer: tuple[Any, Any] | None = None  # hooks of somebody else around ours
        self.inputs: set[torch.UntypedStorage] = set()  # of the forward that is running: its caller keeps them alive
        self.constants: set[torch.UntypedStorage] | None = None  # parameters and buffers; made when first asked for
        self.tally: dict[str, list[int]] = {}  # number and bytes of tensors left alone, by reason

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.call
        self.call = Call(func, args, kwargs) if types in PLAIN_CALLS else None
        try:
            if func in COMPOSITES and self.call is not None:
                with self:
                    return COMPOSITES[func](*args, **(kwargs or {}))
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.call = before

    def pack(self, tensor: torch.Tensor) -> Packed:
        """Return what autograd keeps instead of the tensor."""
        if not is_codable(tensor, self.min_bytes):
            return self._leave_alone(tensor, SMALL)
        role = role_of(tensor, self.call)  # who reads it, what of it
        if role.need is Need.PARAMETER:
            return self._leave_alone(tensor, PARAMETER)
        if role.need is Need.REBUILD:
            return self._rebuild(tensor, role)
        storage = tensor.untyped_storage()
        reason = self._held_elsewhere(tensor, storage, role)
        if reason is not None:
            return self._leave_alone(tensor, reason)
        stored = find(tensor, storage)  # same storage and version: one Stored, strictest need
        if stored is None:
            stored = Stored(tensor, storage, self.running.path, self.running.next_site())
            hint = self.session.hints.get(stored.site)
            if hint is not None:
                self._provide(stored, tensor, hint)
        elif stored.has_given(storage):
            return Saved(stored, tensor, stored.gave_flags)
        else:
            self.shelf.ledger.record_repeat(stored.path, role.name, stored.nbytes)
        self._provide(stored, tensor, role)  # plan, bound, code, arena
        if role.need is Need.SHAPE:
            return Shaped(stored, tensor)
        return Saved(stored, tensor, role.need is Need.SIGN) if stored.kept is None else self._keep(tensor, stored)

    def unpack(self, saved: Packed) -> torch.Tensor:
        """Return the tensor that was packed; may be asked any number of times."""
        self.session.was_read |= not self.is_on
        if isinstance(saved, Saved):
            return self.shelf.fetch(saved)  # arena, decode, the view as it was
        return saved.restore_in(self.shelf.buffers) if isinstance(saved, Shaped) else saved.restore()

    def _provide(self, stored: Stored, tensor: torch.Tensor, role: Role) -> None:
        """Make sure that what the role needs is stored."""
        bound = stored.coded_bound(self.session.attached.bound_of(self.running.path))
        missing = stored.missing(role, bound)
        if missing is None:
            if stored.guard is None:
                self.shelf.put_shape(stored, tensor, role)
            return
        if stored.guard is not None and missing.need in HINTED:  # what is stored is not enough: next time at once
            self.session.hints[stored.site] = missing
        plan = self.session.policy.plan(stored.coded_role(missing), tensor, bound)
        detail = "" if self.call is None else getattr(self.call.function, "__name__", "")
        self.shelf.put(stored, tensor, missing, plan, detail)
        if missing.need is not Need.SIGN:
            stored.role, stored.bound = missing, bound

    def _leave_alone(self, tensor: torch.Tensor, reason: str) -> Kept | Passed:
        count = self.tally.get(reason)
        if count is None:
            count = self.tally[reason] = [0, 0]
        count[0] += 1
        count[1] += tensor.nbytes if tensor.layout is torch.strided else 0
        return self._keep(tensor)

    def _keep(self, tensor: torch.Tensor, stored: Stored | None = None) -> Kept | Passed:
        """Return the tensor as it is, or what hooks around ours make of it."""
        if self.outer is None:
            return Kept(tensor, stored)
        if stored is not None and stored.n_saves == 0:
            stored.kept = None  # theirs now
        return Passed(tensor, self.outer)

    def _rebuild(self, tensor: torch.Tensor, role: Role) -> Rebuilt:
        assert role.leaf is not None
        rebuilt = Rebuilt(tensor, role.leaf)
        self.session.rebuilt.add(rebuilt)
        path = self.running.path
        self.shelf.ledger.record_pack(path, role.name, "rebuild", tensor.untyped_storage().nbytes(), 0, 0.0)
        return rebuilt

    def _held_elsewhere(self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role) -> str | None:
        """Return why the tensor stays alive anyway, if it does."""
        if storage in self.inputs:
            return INPUT
        if tensor.grad_fn is not None or role.need not in (Need.EXACT, Need.MASK):
            return None
        if self.constants is None:
            self.constants = self.session.attached.constants()
        return BUFFER if storage in self.constants else None

    def enter(self, module: nn.Module, path: str, args: tuple[Any, ...], caller: FrameType) -> None:
        """Begin the forward of an attached module; see Note [Who records]."""
        if self.is_on and path in self.session.attached.root_paths and has_ended(self.caller):
            self.reset()
        if not self.is_on and self.n_paused == 0:
            if torch.is_grad_enabled():
                self._install(caller)
                if self.is_on:
                    self.inputs = storages_of((args, caller.f_locals.get("kwargs")))
            elif not self.running.frames:
                self.shelf.ledger.record_skipped()
        self.running.push(module, path)

    def leave(self, module: object) -> None:
        """End the forward of an attached module, and of those within it that an exception ended."""
        depth = self.running.depth_of(module)
        if depth is None:
            return
        if self.is_on and depth <= self.owner:
            _explain_functional(sys.exc_info()[1])
            self._remove()
        del self.running.frames[depth:]

    def reset(self) -> None:
        """Forget forwards that ended without telling."""
        if self.is_on:
            self._remove()
        self.running.frames.clear()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the hooks away and put them back."""
        was_on, owner, caller = self.is_on, self.owner, self.caller
        if was_on:
            self._remove()
        self.n_paused += 1
        try:
            yield
        finally:
            self.n_paused -= 1
            if was_on:
                self._install(caller)
                self.owner = owner

    def _install(self, caller: FrameType | None) -> None:
        if not autograd._saved_tensors_hooks_is_enabled():
            if torch._C._functorch.maybe_current_level() is None:
                return
            raise ConfigError(f"an attached module expected no torch.func transform around it; {FUNCTIONAL_ADVICE}")
        outer = autograd._top_saved_tensors_default_hooks(True)
        if outer is not None:
            if getattr(outer[0], "__module__", "") == "torch.utils.checkpoint":
                self.shelf.ledger.record_skipped(IN_CHECKPOINT)
                return
            if not isinstance(getattr(outer[0], "__self__", None), Recorder):
                self.outer = outer
                self.session.foreign_hooks.add(getattr(outer[0], "__qualname__", type(outer[0]).__name__))
        self.session.begin_forward()
        autograd._push_saved_tensors_default_hooks(*self.hooks)
        self.__enter__()
        self.is_on, self.owner, self.caller = True, len(self.running.frames), caller

    def _remove(self) -> None:
        top = autograd._top_saved_tensors_default_hooks(True)
        if top is not None and top[0] is self.hooks[0]:
            autograd._pop_saved_tensors_default_hooks()
        depth = torch._C._len_torch_function_stack()
        if depth and torch._C._get_function_stack_at(depth - 1) is self:
            self.__exit__(None, None, None)
        self.is_on, self.caller, self.call, self.constants, self.outer = False, None, None, None, None
        self.inputs = set()
        for reason, (n, nbytes) in self.tally.items():
            self.shelf.ledger.record_kept("", "", nbytes, reason, n=n)
        self.tally.clear()
        self.session.end_forward()


class Session:
    """Hooks on the forwards of some modules, from attach() to detach(). Also a context manager."""

    def __init__(
        self,
        modules: tuple[nn.Module, ...],
        bound: RoleBound,
        policy: Policy,
        rules: Mapping[str, RoleBound],
        min_bytes: int,
    ) -> None:
        check_policy(policy)
        if not isinstance(min_bytes, int) or min_bytes < 0:
            raise ConfigError(f"expected min_bytes to be a number of bytes, got {min_bytes!r}; the default is 4096")
        self.attached = Attached(modules, bound, rules)
        self.policy, self.min_bytes = policy, min_bytes
        self.shelf = Shelf(Ledger())
        self.meter = PeakMeter()
        self.hints: dict[tuple[str, int], Role] = {}  # by site: what turned out to be needed of a tensor saved there
        self.rebuilt: weakref.WeakSet[Rebuilt] = weakref.WeakSet()
        self.foreign_hooks: set[str] = set()
        self.was_read = False  # by a backward outside of any forward: the next forward begins a step
        self.n_steps = 0
        self.is_attached = True
        self._threads = threading.local()
        self._lock = threading.Lock()
        self._n_active = 0
        self.attached.when_gone(self.detach)
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            register_optimizer_step_pre_hook(self._before_step),
        ]

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # compiled graphs save their tensors when they run, under the hooks of whoever calls them
        path = self.attached.path_of(module)
        if path is not None and self.is_attached:
            self._recorder.enter(module, path, args, sys._getframe(1))

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling() and self.attached.path_of(module) is not None:
            self._recorder.leave(module)

    def _before_step(self, *_: Any) -> None:
        """The optimizer is about to change the parameters: copies of them that backward still needs are made now."""
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
        self._recorder.reset()
        with self._lock:
            self.is_attached = False
            handles = self._take_handles()
        for handle in handles:
            handle.remove()
        self.attached.release()
        self.shelf.close()

    def _take_handles(self) -> list[Any]:
        """Return the handles to remove: none while a forward in another thread still has to end."""
        if self.is_attached or self._n_active:
            return []
        handles, self._handles = self._handles, []
        return handles

    def begin_forward(self) -> None:
        with self._lock:
            self._n_active += 1
        if self.was_read:
            self._end_step()

    def end_forward(self) -> None:
        with self._lock:
            self._n_active -= 1
            handles = self._take_handles()
        for handle in handles:
            handle.remove()

    def _end_step(self) -> None:
        self.was_read = False
        self.n_steps += 1
        self.shelf.ledger.next_step()
        self.shelf.trim()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record code outside of the modules, in this thread."""
        recorder, token = self._recorder, object()
        if not recorder.is_on and torch.is_grad_enabled() and self.is_attached:
            recorder._install(None)
        recorder.running.push(token, "")
        try:
            yield
        finally:
            recorder.leave(token)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Leave tensors alone, in this thread."""
        return self._recorder.suspended()

    def report(self) -> Report:
        """Return what was saved, how small it became, and what memory it took."""
        if self.was_read:
            self._end_step()
        arena, buffers = self.shelf.arena, self.shelf.buffers
        storage = {"arena": arena.nbytes_touched, "buffers": buffers.nbytes_held}
        remarks = [FOREIGN.format(name) for name in sorted(self.foreign_hooks)]
        return Report(self.shelf.ledger.snapshot(), storage, self.meter.read(), remarks)

    def kept_bytes(self) -> int:
        """Return the bytes that autograd's graphs keep through this session right now, each storage once."""
        return self.shelf.nbytes_kept() + sum(r.copy.nbytes for r in list(self.rebuilt) if r.copy is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on as this one would."""
        hints = [(*site, role_to_dict(role)) for site, role in self.hints.items()]
        return {"n_steps": self.n_steps, "hints": hints}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.n_steps = state["n_steps"]
        self.hints = {(path, number): role_from_dict(role) for path, number, role in state["hints"]}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def _explain_functional(error: BaseException | None) -> None:
    """Add to torch's own refusal of torch.func under hooks what can be done about it."""
    text = str(error.args[0]) if isinstance(error, RuntimeError) and error.args else ""
    if error is not None and "saved tensor hooks" in text and FUNCTIONAL_ADVICE not in text:
        error.args = (f"{text} slimgrad: {FUNCTIONAL_ADVICE}", *error.args[1:])
