"""What happens in a forward that is recorded: the hooks of one session in one thread.

    forward    pack: role -> the Stored of that storage -> plan -> code -> arena
    backward   unpack: arena -> decode into a pooled buffer -> the view as it was

This is the only file that installs saved-tensor hooks.

Note [Who records]. Per thread, the outermost attached module whose forward runs with gradients on installs one pair of
saved-tensor hooks and one function mode, and removes both when it returns or raises. Torch runs only the innermost
pair: checkpoint's own pair inside our forward keeps working, and inside checkpoint's (its first forward, and when it
computes a block again) we install nothing, because ours would hide it. Any other pair around ours gets what we leave.

Note [Interrupted forwards]. Torch calls no forward hooks after KeyboardInterrupt. What such a forward leaves behind is
found by its frame, which runs no more, when the next outermost forward begins, or on detach().

Note [Small tensors]. Most saved tensors are small, and hooks cost microseconds: these take the shortest way through
pack and unpack, as a bare (tensor, version). A tensor without grad_fn cannot close a cycle and need not be detached.

Note [The mode rests]. A function mode slows down every call and every attribute of a tensor. While a module runs whose
forward is known to be one call of one function, its hook says as much, and the mode is taken off the stack.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode as pop_mode
from torch.overrides import _push_mode as push_mode

from slimgrad import recipes
from slimgrad.attached import has_ended, storages_of
from slimgrad.consumers import COMPOSITES, SIMPLE_MODULES, Call, call_of, role_of
from slimgrad.errors import ConfigError
from slimgrad.ledger import BUFFER, INPUT, PARAMETER, SMALL
from slimgrad.roles import Need, Role
from slimgrad.saved import Kept, Leftovers, Packed, Rebuilt, Saved, Shaped, Stored, changed_in_place, find, is_plain

if TYPE_CHECKING:
    from slimgrad.session import Session

autograd = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
PLAIN_CALL = (torch.Tensor,)  # classes in a call's arguments that have a __torch_function__, where none is special
FUNCTIONAL_ADVICE = "torch.func cannot see through saved-tensor hooks, call it under: with session.paused(): ..."
MODULE, PATH, N_SAVES, RESTS = FRAME = range(4)  # a frame; RESTS: whether the function mode does
IN_CHECKPOINT = "inside torch.utils.checkpoint"


class Recorder(TorchFunctionMode):
    """The hooks of one session in one thread. As a function mode it knows which torch function is running."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session, self.shelf, self.progress = session, session.shelf, session.progress
        self.tuning = session.tuning
        self.moves_exact = getattr(session.policy, "moves_exact", False)
        self.makes_again = getattr(session.policy, "makes_again", False)
        self.hooks = (self.pack, self.unpack)
        self.is_on = False
        self.n_paused = 0
        self.frames: list[list[Any]] = []  # forwards that are running, the recorded one first; see FRAME
        self.caller: FrameType | None = None  # Note [Interrupted forwards]
        self.small_below = session.min_bytes
        self.function: tuple[Any, Any, Any] | None = None  # that is running: function, args, kwargs
        self.module: tuple[nn.Module, Any] | None = None  # that is running, and its args, while the mode rests
        self.inputs: set[torch.UntypedStorage] = set()  # of the forward that is running: its caller keeps them alive
        self.constants: set[torch.UntypedStorage] | None = None  # parameters and buffers; made when first asked for
        self.left = Leftovers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.function
        self.function = (func, args, kwargs) if not types or types == PLAIN_CALL else None
        try:
            if func in COMPOSITES and self.function is not None:
                with self:
                    return COMPOSITES[func](*args, **(kwargs or {}))
            if self.makes_again and func in recipes.CHEAP:
                known = recipes.before(func, args)
                result = func(*args, **(kwargs or {}))
                if known is not None:
                    recipes.note(known, func, args, kwargs, result)
                return result
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.function = before

    def pack(self, tensor: torch.Tensor) -> Packed | recipes.Recomputed:
        """Return what autograd keeps instead of the tensor."""
        try:
            nbytes = tensor.nbytes
        except RuntimeError:  # sparse
            return self.left.leave(tensor, SMALL)
        if nbytes < self.small_below:  # Note [Small tensors]
            self.left.small_sizes.append(nbytes)
            return (tensor if tensor.grad_fn is None else tensor.detach()), tensor._version
        if not is_plain(tensor, self.session.min_bytes):
            return self.left.leave(tensor, SMALL)
        call = self._call()
        role = role_of(tensor, call)  # who reads it, what of it
        storage = tensor.untyped_storage()
        kept = self._kept_elsewhere(tensor, storage, role)
        if kept is not None:
            return kept
        if self.makes_again and (again := recipes.packed(tensor, role)) is not None:
            self.shelf.put_rebuilt(self.path, storage, role)
            return again
        found = find(tensor, storage)  # same storage and version: one Stored, strictest need
        if found is None:
            site = self._next_site()
            first = self.progress.hints.get(site, role)
            if first.is_exact and not self.moves_exact:
                return self.left.keep_exact(tensor, storage, first, self.path, call)
            stored = Stored(tensor, storage, site)
            if first is not role:
                self._provide(stored, tensor, first, call)
        else:
            self.shelf.ledger.record_repeat(self.path, role.name, storage.nbytes())
            if isinstance(found, Kept):
                return self.left.keep(tensor)
            stored = found
            if stored.has_given(storage):
                return Saved(stored, tensor, stored.gave_flags)
        self._provide(stored, tensor, role, call)  # plan, bound, code, arena
        if role.need is Need.SHAPE:
            return Shaped(stored, tensor)
        return Saved(stored, tensor, role.need is Need.SIGN) if stored.kept is None else self.left.keep(tensor, stored)

    def unpack(self, saved: Packed | recipes.Recomputed) -> torch.Tensor:
        """Return the tensor that was packed; may be asked any number of times."""
        if not self.is_on:
            self.progress.was_read = True
        if isinstance(saved, tuple):
            tensor, version = saved
            if tensor._version != version:
                raise changed_in_place(tensor.dtype, tensor.shape, tensor._version, version)
            return tensor
        if isinstance(saved, Saved):
            return self.shelf.fetch(saved)  # arena, decode, the view as it was
        if isinstance(saved, recipes.Recomputed):
            return saved.restore_from(self.shelf)
        return saved.restore_in(self.shelf.buffers) if isinstance(saved, Shaped) else saved.restore()

    def _provide(self, stored: Stored, tensor: torch.Tensor, role: Role, call: Call | None) -> None:
        """Make sure that what the role needs is stored."""
        bound = stored.coded_bound(self.tuning.bound_at(self.path, stored.site))
        missing = stored.missing(role, bound)
        if missing is None:
            if stored.guard is None:
                self.shelf.put_shape(stored, tensor, role)
            return
        if stored.guard is not None:  # what is stored is not enough
            self.progress.learn(stored.site, missing)
        planned, coded_role = self.session.planned, stored.coded_role(missing)
        if planned is None:
            plan = self.session.policy.plan(coded_role, tensor, bound)
        else:
            plan = planned.plan(stored.site, coded_role, tensor, bound)
        self.shelf.put(stored, tensor, missing, plan, "" if call is None else call.name)
        if missing.need is not Need.SIGN:
            stored.role, stored.bound = missing, bound
        if self.tuning.meter.is_on:
            self.tuning.meter.note(stored, tensor, bound)

    def _kept_elsewhere(self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role) -> Packed | None:
        """Return what to keep of a tensor that stays alive anyway: parameters, buffers, the caller's inputs."""
        if role.need is Need.PARAMETER:
            return self.left.leave(tensor, PARAMETER)
        if role.need is Need.REBUILD:
            assert role.leaf is not None
            rebuilt = Rebuilt(tensor, role.leaf)
            self.session.rebuilt.add(rebuilt)
            self.shelf.put_rebuilt(self.path, storage, role)
            return rebuilt
        if storage in self.inputs:
            return self.left.leave(tensor, INPUT)
        if tensor.grad_fn is None and role.need in (Need.EXACT, Need.MASK):
            if self.constants is None:
                self.constants = self.session.attached.constants()
            if storage in self.constants:
                return self.left.leave(tensor, BUFFER)
        return None

    @property
    def path(self) -> str:
        """The module that is running, the innermost."""
        return self.frames[-1][PATH] if self.frames else ""

    def _next_site(self) -> tuple[str, int]:
        """Return a name for the save that is made now, by which the next step knows it again."""
        if not self.frames:
            return "", 0
        frame = self.frames[-1]
        frame[N_SAVES] += 1
        return frame[PATH], frame[N_SAVES]

    def _call(self) -> Call | None:
        if self.function is not None:
            return Call(*self.function)
        return None if self.module is None else call_of(*self.module)

    def enter(self, module: nn.Module, path: str, args: tuple[Any, ...]) -> None:
        """Begin the forward of an attached module; see Note [Who records]."""
        if self.is_on:
            if path not in self.session.attached.root_paths or not has_ended(self.caller):
                self.frames.append([module, path, 0, type(module) in SIMPLE_MODULES and self._rest(module, args)])
                return
            self.remove()
        if self.n_paused == 0 and torch.is_grad_enabled():
            self.install(module, path, sys._getframe(2))
            if self.is_on and self.caller is not None:
                self.inputs = storages_of((args, self.caller.f_locals.get("kwargs")))
        elif path in self.session.attached.root_paths:
            self.shelf.ledger.record_skipped()

    def leave(self, module: object) -> None:
        """End the forward of an attached module, and of those within it that an exception ended."""
        frames = self.frames
        while frames and (frames[-1][MODULE] is module or any(frame[MODULE] is module for frame in frames)):
            frame = frames.pop()
            if frame[RESTS]:
                self.module = None
                push_mode(self)
            if not frames:
                _explain_functional(sys.exc_info()[1])
                self.remove()
            if frame[MODULE] is module:
                return

    def _rest(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        """Let the function mode rest during a forward of which the function is known; return whether it does."""
        if self.makes_again or module._forward_pre_hooks or "forward" in module.__dict__:
            return False  # another input, or another forward, than the class has
        if not self._is_on_top():
            return False
        pop_mode()
        self.module = module, args
        return True

    def _is_on_top(self) -> bool:
        """Return whether our mode is the next to be asked: not so inside a function, or under a mode of others."""
        depth = torch._C._len_torch_function_stack()
        return depth > 0 and torch._C._get_function_stack_at(depth - 1) is self

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the hooks away and put them back."""
        was_on, frames, caller, inputs = self.is_on, self.frames, self.caller, self.inputs
        self.remove()
        self.n_paused += 1
        try:
            yield
        finally:
            self.n_paused -= 1
            if was_on:
                self.install(None, "", caller)
                self.frames, self.inputs = frames, inputs

    def install(self, module: object, path: str, caller: FrameType | None) -> None:
        """Install hooks and function mode, unless others forbid it; see Note [Who records]."""
        if not autograd._saved_tensors_hooks_is_enabled():
            if functorch.maybe_current_level() is None:
                return
            raise ConfigError(f"an attached module expected no torch.func transform around it; {FUNCTIONAL_ADVICE}")
        outer = autograd._top_saved_tensors_default_hooks(True)
        if outer is not None:
            if getattr(outer[0], "__module__", "") == "torch.utils.checkpoint":
                self.shelf.ledger.record_skipped(IN_CHECKPOINT)
                return
            if not isinstance(getattr(outer[0], "__self__", None), Recorder):
                self.left.outer, self.small_below = outer, 0
                self.progress.meet(outer[0])
        self.session.begin_forward()
        autograd._push_saved_tensors_default_hooks(*self.hooks)
        push_mode(self)
        self.is_on, self.caller, self.frames = True, caller, [[module, path, 0, False]]

    def remove(self) -> None:
        """Remove hooks and function mode, and what was noted for this forward."""
        if not self.is_on:
            return
        if self.session.blocks is not None:
            self.session.blocks.end_all()
        top = autograd._top_saved_tensors_default_hooks(True)
        if top is not None and top[0] is self.hooks[0]:
            autograd._pop_saved_tensors_default_hooks()
        if self._is_on_top():
            pop_mode()
        self.is_on, self.caller, self.frames = False, None, []
        self.function, self.module, self.constants, self.inputs = None, None, None, set()
        self.small_below = self.session.min_bytes
        self.left.end_forward(self.shelf.ledger)
        self.session.end_forward()


def _explain_functional(error: BaseException | None) -> None:
    """Add to torch's own refusal of torch.func under hooks what can be done about it."""
    text = str(error.args[0]) if isinstance(error, RuntimeError) and error.args else ""
    if error is not None and "saved tensor hooks" in text and FUNCTIONAL_ADVICE not in text:
        error.args = (f"{text} slimgrad: {FUNCTIONAL_ADVICE}", *error.args[1:])
