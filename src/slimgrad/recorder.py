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

Note [The mode rests]. A function mode slows down every call and every attribute of a tensor. It is taken off the stack
while a module runs whose forward is known to be one call of one function (simple.py), and while one runs that saved
small tensors only in the last such forward (quiet.py). Should a quiet module save something large after all, that is
kept as it is in this forward, and the module is quiet no more.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C import _get_function_stack_at as mode_at  # pyright: ignore[reportAttributeAccessIssue]
from torch._C import _is_tracing as is_tracing  # pyright: ignore[reportAttributeAccessIssue]
from torch._C import _len_torch_function_stack as n_modes  # pyright: ignore[reportAttributeAccessIssue]
from torch._C import _pop_torch_function_stack as pop_mode  # pyright: ignore[reportAttributeAccessIssue]
from torch._C import _push_on_torch_function_stack as push_mode  # pyright: ignore[reportAttributeAccessIssue]
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from slimgrad import recipes
from slimgrad.attached import has_ended, storages_of
from slimgrad.coder import Coder, Remembered
from slimgrad.consumers import COMPOSITES, EXACTLY, Call, role_of
from slimgrad.derived import FUNCTIONS
from slimgrad.deriving import Deriver
from slimgrad.errors import ConfigError
from slimgrad.ledger import BUFFER, INPUT, PARAMETER, SMALL
from slimgrad.leftovers import Leftovers, is_top
from slimgrad.plans import Plans
from slimgrad.quiet import Quiet
from slimgrad.roles import Need, Role
from slimgrad.saved import NOTE, Kept, Packed, Rebuilt, Saved, Shaped, Stored, changed_in_place, find, plain_storage
from slimgrad.simple import call_of, is_simple

if TYPE_CHECKING:
    from slimgrad.session import Session

autograd = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
PLAIN_CALL = (torch.Tensor,)  # classes in a call's arguments that have a __torch_function__, where none is special
FUNCTIONAL_ADVICE = "torch.func cannot see through saved-tensor hooks, call it under: with session.paused(): ..."
# Of a forward that is running: ..., small saves before it, and whether the mode was on the stack before it
MODULE, PATH, N_SAVES, IS_QUIET, N_SMALL, LISTENED = FRAME = range(6)
IN_CHECKPOINT, IN_TRACE = "inside torch.utils.checkpoint", "inside torch.jit.trace"
KEPT_ELSEWHERE = (Need.PARAMETER, Need.REBUILD)
SHAPE, SIGN = Need.SHAPE, Need.SIGN  # plain globals: looking a member up in its Enum takes longer


class Recorder(TorchFunctionMode):
    """The hooks of one session in one thread. As a function mode it knows which torch function is running."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session, self.shelf, self.progress = session, session.shelf, session.progress
        self.tuning, self.min_bytes = session.tuning, session.min_bytes
        self.moves_exact = getattr(session.policy, "moves_exact", False)
        self.makes_again = getattr(session.policy, "makes_again", False)
        self.hooks = (self.pack, self.unpack)
        self.left = Leftovers(session.shelf)
        self.deriver = Deriver.of(session, partial(self.left.are_alone, self.hooks))
        self.is_on = False
        self.n_paused = 0
        self.frames: list[list[Any]] = []  # forwards that are running, the recorded one first; see FRAME
        self.caller: FrameType | None = None  # Note [Interrupted forwards]
        self.small_below = session.min_bytes
        self.function: tuple[Any, Any, Any] | None = None  # that is running: function, args, kwargs
        self.module: tuple[nn.Module, Any] | None = None  # that is running, and its args, while the mode rests
        self.listens = False  # whether the mode is on the stack; Note [The mode rests]
        self.quiet = Quiet()
        self.inputs: set[torch.UntypedStorage] = set()  # of the forward that is running: its caller keeps them alive
        self.constants: set[torch.UntypedStorage] | None = None  # parameters and buffers; made when first asked for
        self.plans = Plans(session)

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
            if self.deriver is not None and not is_compiling() and func in FUNCTIONS and self.function is not None:
                return self.deriver.run(Call(func, args, kwargs), self.path)
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
            return (tensor if tensor.is_leaf else tensor.detach()), tensor._version
        storage = plain_storage(tensor, self.min_bytes)
        if storage is None:
            return self.left.leave(tensor, SMALL)
        call = self._call()
        role = role_of(tensor, call)  # who reads it, what of it
        if role.need in KEPT_ELSEWHERE or tensor.is_leaf or storage in self.inputs:
            kept = self._kept_elsewhere(tensor, storage, role)
            if kept is not None:
                return kept
        if self.makes_again and (again := self._again(tensor, storage, role)) is not None:
            return again
        if self.deriver is not None:
            made = self.deriver.packed(tensor, storage, role, self.path, self._next_site)
            if made is not None:
                return made
        found = find(tensor, storage) if hasattr(storage, NOTE) else None  # same storage and version: strictest need
        if found is None:
            site = self._next_site()
            first = role if self.makes_again and self._is_made(site) else self.progress.hints.get(site, role)
            if first.need is EXACTLY and not self.moves_exact:
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
        if role.need is SHAPE:
            return Shaped(stored, tensor, role.in_memory)
        return Saved(stored, tensor, role.need is SIGN) if stored.kept is None else self.left.keep(tensor, stored)

    def unpack(self, saved: Packed | recipes.Recomputed) -> torch.Tensor:
        """Return the tensor that was packed; may be asked any number of times."""
        if not self.is_on:
            self.progress.was_read = True
        if type(saved) is tuple:
            tensor, version = saved
            if tensor._version != version:
                raise changed_in_place(tensor.dtype, tensor.shape, tensor._version, version)
            return tensor
        if isinstance(saved, Saved):
            return self.shelf.fetch(saved)  # arena, decode, the view as it was
        if isinstance(saved, recipes.Recomputed):
            return saved.restore_from(self.shelf)
        if isinstance(saved, Shaped):
            return saved.restore_in(self.shelf.buffers)
        return saved.restore()  # pyright: ignore[reportAttributeAccessIssue]  tuples are gone by now

    def _provide(self, stored: Stored, tensor: torch.Tensor, role: Role, call: Call | None) -> None:
        """Make sure that what the role needs is stored."""
        if stored.guard is None:  # nothing is
            if role.need is SHAPE:
                return self.shelf.put_shape(stored, tensor, role)
            known = self.plans.first(stored, role, tensor)
            coder = None if role.need is SIGN else known.coder_for(tensor, stored.nbytes)
            if self.deriver is not None and self.deriver.defers(role, coder):
                put = partial(self._put, stored, tensor.detach(), role, known, call, coder)
                return self.deriver.later(stored, put)
            return self._put(stored, tensor, role, known, call, coder)
        if stored.serves(role):
            return None
        bound = stored.coded_bound(self.tuning.bound_at(self.path, stored.site))
        missing = stored.missing(role, bound, tensor)
        if missing is None:
            return None
        if stored.shelf is self.shelf:  # and it is no site of another session's
            self.progress.learn(stored.site, missing)
        plan = self.plans.plan(stored.site, stored.coded_role(missing), tensor, bound)
        return self._put(stored, tensor, missing, Remembered(bound, plan), call)

    def _put(
        self, stored: Stored, tensor: torch.Tensor, role: Role, known: Remembered, call: Call | None,
        coder: Coder | None = None, edges: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        self.shelf.put(stored, tensor, role, known.plan, call, coder, edges)
        if role.need is not SIGN:
            stored.role, stored.bound = role, known.bound
        if self.tuning.meter.is_on:
            self.tuning.meter.note(stored, tensor, known.bound)

    def _again(self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role) -> recipes.Recomputed | None:
        """Return how the tensor is made again, if it can be and nobody has planned otherwise."""
        again = recipes.packed(tensor, role)
        if again is None:
            return None
        found = find(tensor, storage)
        site = found.site if isinstance(found, Stored) else self.shelf.rebuilt_site(storage)
        n_saves = self.frames[-1][N_SAVES] if self.frames else -1
        if self.session.planned is not None and not self._is_made(site or (self.path, n_saves + 1)):
            return None
        self.shelf.put_rebuilt(self.path, storage, role, site or self._next_site())
        return again

    def _is_made(self, site: tuple[str, int]) -> bool:
        return self.session.planned is not None and self.session.planned.makes(site)

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
        if tensor.is_leaf and 2 * tensor.nbytes < storage.nbytes() and self._is_cut_out(tensor, storage, role):
            return self.left.leave(tensor, INPUT)
        return None

    def _is_cut_out(self, tensor: torch.Tensor, storage: torch.UntypedStorage, role: Role) -> bool:
        """Return whether a small part of a larger storage, a batch of a data set, would be coded with all the rest."""
        if role.need is SHAPE or (role.need is EXACTLY and not self.moves_exact):
            return False
        return find(tensor, storage) is None and recipes.recipe_of(tensor) is None

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
        """Return the call that saves a tensor which is large enough to ask."""
        if self.frames:
            self.frames[-1][IS_QUIET] = False
        if self.function is not None:
            return tuple.__new__(Call, self.function)  # Call(*...) without the Python function that a NamedTuple adds
        return None if self.module is None else call_of(*self.module)

    def enter(self, module: nn.Module, path: str, args: tuple[Any, ...]) -> None:
        """Begin the forward of an attached module; see Note [Who records]."""
        if self.is_on:
            if path not in self.session.attached.root_paths or not has_ended(self.caller):
                listened = self.listens
                is_known = not self.makes_again and is_simple(module)
                self.module = (module, args) if is_known else None
                if is_known and self.deriver is not None:
                    self.deriver.begin(call_of(module, args), path)
                wish = not is_known and (self.makes_again or path not in self.quiet)
                if wish is not listened:
                    self._listen(wish)
                self.frames.append([module, path, 0, not is_known, len(self.left.small_sizes), listened])
                return
            self.remove()
        if self.n_paused == 0 and torch.is_grad_enabled():
            caller = sys._getframe(2)
            inputs = storages_of((args, caller.f_locals.get("kwargs")))
            self.quiet.begin(path, sum(storage.nbytes() for storage in inputs))
            self.install(module, path, caller)
            self.inputs = inputs if self.is_on else set()
        elif path in self.session.attached.root_paths:
            self.shelf.ledger.record_skipped()

    def leave(self, module: object, result: Any = None) -> None:
        """End the forward of an attached module, and of those within it that an exception ended."""
        frames = self.frames
        while frames and (frames[-1][MODULE] is module or any(frame[MODULE] is module for frame in frames)):
            frame = frames.pop()
            if self.module is not None and self.deriver is not None:
                self.deriver.end(result)
            self.module = None
            has_saved = not frame[IS_QUIET] or len(self.left.small_sizes) > frame[N_SMALL]
            if has_saved and sys.exc_info()[1] is None:  # a frozen module, or half a forward, says nothing
                self.quiet.note(frame[PATH], is_loud=not frame[IS_QUIET])
            if frame[LISTENED] is not self.listens:
                self._listen(frame[LISTENED])
            if not frames:
                _explain_functional(sys.exc_info()[1])
                self.remove()
            if frame[MODULE] is module:
                return

    def _listen(self, wish: bool) -> None:
        """Put the function mode on the stack, or take it off where it is the next to be asked.

        That is not so inside of a function, or under a mode of others.
        """
        if wish and not self.listens:
            push_mode(self)
            self.listens = True
        elif self.listens and not wish:
            depth = n_modes()
            if depth and mode_at(depth - 1) is self:
                pop_mode()
                self.listens = False

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Take the hooks away and put them back."""
        was_on, listened, frames, caller, inputs = self.is_on, self.listens, self.frames, self.caller, self.inputs
        self.remove()
        self.n_paused += 1
        try:
            yield
        finally:
            self.n_paused -= 1
            if was_on:
                self.install(None, "", caller)
                self._listen(listened)
                self.frames, self.inputs = frames, inputs

    def install(self, module: object, path: str, caller: FrameType | None) -> None:
        """Install hooks and function mode, unless others forbid it; see Note [Who records]."""
        if not autograd._saved_tensors_hooks_is_enabled():
            if functorch.maybe_current_level() is None:
                return
            raise ConfigError(f"an attached module expected no torch.func transform around it; {FUNCTIONAL_ADVICE}")
        if is_tracing():  # sizes and addresses would be values of the trace, and what we compute a part of it
            self.shelf.ledger.record_skipped(IN_TRACE)
            return
        outer = autograd._top_saved_tensors_default_hooks(True)
        if outer is not None:
            if getattr(outer[0], "__module__", "") == "torch.utils.checkpoint":
                self.shelf.ledger.record_skipped(IN_CHECKPOINT)
                return
            if not isinstance(getattr(outer[0], "__self__", None), Recorder):
                self.left.outer, self.small_below = outer, 0
                self.progress.meet(outer[0])
        self.session.begin_forward()
        self.plans.begin_forward()
        if self.session.planned is not None:
            self.makes_again = self.session.planned.makes_any
        autograd._push_saved_tensors_default_hooks(*self.hooks)
        is_module = isinstance(module, nn.Module)  # and not the code of a recording()
        self._listen(not is_module or self.makes_again or path not in self.quiet)
        self.is_on, self.caller, self.frames = True, caller, [[module, path, 0, is_module, 0, False]]

    def remove(self) -> None:
        """Remove hooks and function mode, and what was noted for this forward."""
        if not self.is_on:
            return
        if self.session.blocks is not None:
            self.session.blocks.end_all()
        if self.deriver is not None:
            self.deriver.end(None)
        if is_top(self.hooks):
            autograd._pop_saved_tensors_default_hooks()
        self._listen(False)
        self.is_on, self.listens, self.caller, self.frames = False, False, None, []
        self.function, self.module, self.constants, self.inputs = None, None, None, set()
        self.small_below = self.session.min_bytes
        self.quiet.end()
        self.left.end_forward(self.shelf.ledger)
        self.session.end_forward()


def _explain_functional(error: BaseException | None) -> None:
    """Add to torch's own refusal of torch.func under hooks what can be done about it."""
    text = str(error.args[0]) if isinstance(error, RuntimeError) and error.args else ""
    if error is not None and "saved tensor hooks" in text and FUNCTIONAL_ADVICE not in text:
        error.args = (f"{text} slimgrad: {FUNCTIONAL_ADVICE}", *error.args[1:])
