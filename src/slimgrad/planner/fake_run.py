"""One training step without data: a FakeTensor run that counts every live byte.

    work = Workload(build=ResNet50, example=lambda n: (images(n), labels(n)))
    predict(work, batch=256)                                         plain
    predict(work, batch=256, prepare=checkpoint_segments)            the model changed first
    predict(work, batch=256, policy=Compress(), bound=Relative(0.5)) slim

Fake tensors have shapes, storages and lifetimes and no memory, and autograd runs on them as on others. So nothing here
models a network: the step itself runs, forward, backward and optimiser, and storages are counted as they come and go.
For slim policies the engine itself runs on them, on a shelf that stores nothing (fake_shelf.py). ResNet-50 takes
seconds at any batch. What it cannot know: values, and with them ratios (rates.py), and scratch memory inside kernels.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from slimgrad import saved
from slimgrad.bounds import Relative
from slimgrad.bounds.base import Adaptive, Fixed
from slimgrad.origins import PLAIN_TYPES
from slimgrad.planner.fake_pool import Pool
from slimgrad.planner.fake_shelf import Again, FakeShelf, Item
from slimgrad.planner.rates import Rates
from slimgrad.policy import Policy
from slimgrad.report.memory import LiveBytes
from slimgrad.session import Session

START = Relative(0.25)  # where every adaptive bound starts


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimiser that predictions use unless told otherwise: one momentum per parameter."""
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained. A module instead of a function is copied without its data, and is not changed."""

    build: Callable[[], nn.Module] | nn.Module
    example: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer] = sgd
    autocast: torch.dtype | None = None


class Moment(NamedTuple):
    """What is live after one operator: tensors, and how far coded bytes and buffers have reached in the pool."""

    live: int
    pooled: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of a step that was not run with data."""

    batch: int
    static: int  # parameters, buffers, gradients, optimiser state, one batch
    saved: int  # activations that plain PyTorch would hold for backward, each storage once; 0 where not asked
    held: int  # beyond static, when forward has ended
    peak: int
    peak_at: str
    seconds: float  # that the prediction took
    items: tuple[Item, ...] = ()
    moments: tuple[Moment, ...] = ()  # of the last step, one per operator; with a policy only
    again: Mapping[tuple[str, int], Again] = field(default_factory=dict)  # by site, under Recompute

    @property
    def beyond_static(self) -> int:
        return self.peak - self.static


class FakeLive(LiveBytes):
    """Live bytes of fake tensors, which have no address; what lies in the pool counts there."""

    def __init__(self, pool: Pool | None = None) -> None:
        super().__init__(None if pool is None else (lambda: pool.touched))
        self._pool = pool
        self.moments: list[Moment] = []

    def _note_peak(self, where: str) -> None:
        super()._note_peak(where)
        if self._pool is not None:
            self._pool.tick(len(self.moments) + 1)
            self.moments.append(Moment(self.now, self._pool.level()))

    def begin_step(self) -> None:
        """Forget the operators of the step before."""
        self.moments.clear()

    def _is_pooled(self, storage: torch.UntypedStorage) -> bool:
        return self._pool is not None and self._pool.owns(storage)


def predict(
    work: Workload,
    batch: int,
    *,
    policy: Policy | None = None,
    bound: Adaptive = START,
    rates: Rates | None = None,
    prepare: Callable[[nn.Module], object] | None = None,
    watch: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Prediction:
    """Return the memory of one step at this batch; without a policy, of plain PyTorch.

    `prepare` may change the model first; `watch()` is entered around the step, to count other things in it.
    """
    start = time.perf_counter()
    with _fakes_are_plain(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        mode.cache_enabled = False  # it would keep storages alive
        model, criterion = _model(work, mode), work.criterion()
        inputs, target = work.example(batch)
        optimizer = work.optimizer(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if prepare is not None:
            prepare(model)
        session = None if policy is None else _session((model, criterion), policy, bound, rates or Rates())
        shelf = None if session is None else session.shelf
        with FakeLive(shelf.pool if isinstance(shelf, FakeShelf) else None) as live:
            live.track(*_static(model, optimizer, inputs, target))
            static, n_steps = live.now, 1 if session is None else 2  # the second knows what the first learnt
            for _ in range(n_steps):
                live.begin_step()
                if isinstance(shelf, FakeShelf):
                    shelf.items.clear()
                optimizer.zero_grad(set_to_none=False)
                with watch():
                    with _autocast(work.autocast):
                        loss = criterion(model(inputs), target)
                    held = live.now + (shelf.pool.now if isinstance(shelf, FakeShelf) else 0) - static
                    loss.backward()
                optimizer.step()
                del loss
        saved_in, items, again = _booked(session)
    seconds = time.perf_counter() - start
    moments = tuple(live.moments)
    return Prediction(batch, static, saved_in, held, live.peak, live.peak_at, seconds, items, moments, again)


def _session(modules: tuple[nn.Module, ...], policy: Policy, bound: Adaptive, rates: Rates) -> Session:
    fixed = bound if isinstance(bound, Fixed) else START
    return Session(modules, fixed, policy, {}, 4096, shelf=FakeShelf(rates, policy))


def _booked(session: Session | None) -> tuple[int, tuple[Item, ...], dict[tuple[str, int], Again]]:
    """Return the saved bytes of the last step, what was stored in it, and what was made again."""
    if session is None or not isinstance(session.shelf, FakeShelf):
        return 0, (), {}
    session.progress.begin_forward()
    last = session.shelf.ledger.snapshot().last
    session.detach()
    return last.saved_in, tuple(session.shelf.items), dict(session.shelf.again)


def _model(work: Workload, mode: FakeTensorMode) -> nn.Module:
    if not isinstance(work.build, nn.Module):
        return work.build().train()
    fakes = {}
    for tensor in itertools.chain(work.build.parameters(), work.build.buffers()):
        fake = mode.from_tensor(tensor.detach())
        is_parameter = isinstance(tensor, nn.Parameter)
        fakes[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
    return copy.deepcopy(work.build, fakes).train()


def _static(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, target: torch.Tensor
) -> list[torch.Tensor]:
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *model.buffers(), *grads, *state, inputs, target]


def _autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


@contextlib.contextmanager
def _fakes_are_plain() -> Iterator[None]:
    """Let the engine take fake tensors for plain memory, and keep its cached tensors apart from real ones."""
    saved._nothing.cache_clear()
    PLAIN_TYPES.add(FakeTensor)
    try:
        yield
    finally:
        PLAIN_TYPES.discard(FakeTensor)
        saved._nothing.cache_clear()
