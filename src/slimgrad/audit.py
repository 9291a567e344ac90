"""Exact against compressed gradient, of one loss: the check from outside.

    audit = session.audit(lambda: criterion(model(x), y))
    audit.noise, audit.expected        sum ||error||^2 / sum ||gradient||^2: measured, and what the bound expected
    audit.layers                       the same by layer
    print(audit)

fn() runs twice, first with the session paused, then as in training. Gradients are asked for by torch.autograd.grad: no
hook of data parallelism starts a collective. Every .grad, buffers and random states (torch's on all devices, Python's,
numpy's) are put back after each run, so that both see the same, and training goes on as if nothing had been. An audit
is no step: nothing is measured for the bounds in it and the report counts nothing of it. A bound that can learn from
what came out does so.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from slimgrad.bounds.base import NEGLIGIBLE, layer_of
from slimgrad.errors import ConfigError
from slimgrad.ledger import Ledger
from slimgrad.recorder import Recorder
from slimgrad.streams import energy

if TYPE_CHECKING:
    from slimgrad.session import Session

N_LAYERS = 12  # rows of the table


class Share(NamedTuple):
    """Energies of an error and of the gradient it is part of."""

    error2: float
    energy: float

    @property
    def noise(self) -> float:
        return self.error2 / self.energy if self.energy else (0.0 if self.error2 == 0.0 else float("inf"))


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit has found."""

    step: int
    parameters: dict[str, Share]
    expected: float | None  # None where the bound expects nothing in particular
    saved_ratio: float  # original / stored bytes over all saved activations of the compressed run

    @property
    def noise(self) -> float:
        """Error energy / gradient energy over all parameters."""
        return _sum(self.parameters.values()).noise

    @property
    def layers(self) -> dict[str, Share]:
        """The sums by module, the largest error first."""
        groups: dict[str, list[Share]] = {}
        for name, share in self.parameters.items():
            groups.setdefault(layer_of(name), []).append(share)
        sums = {layer: _sum(shares) for layer, shares in groups.items()}
        return dict(sorted(sums.items(), key=lambda item: -item[1].error2))

    @property
    def counted(self) -> dict[str, Share]:
        """The layers that hold more than NEGLIGIBLE of the gradient's energy, the largest share of error first."""
        floor = NEGLIGIBLE * _sum(self.parameters.values()).energy
        counted = {name: share for name, share in self.layers.items() if share.energy > floor}
        return dict(sorted(counted.items(), key=lambda item: -item[1].noise))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers."""
        layers = {name: {**share._asdict(), "noise": share.noise} for name, share in self.layers.items()}
        totals = {"noise": self.noise, "expected": self.expected, "saved_ratio": self.saved_ratio}
        return {"step": self.step, **totals, "layers": layers}

    def summary(self) -> str:
        """Return the result in one sentence."""
        expected = "" if self.expected is None else f", {self.expected:.4f} expected"
        layer, share = next(iter(self.counted.items()), ("", Share(0.0, 0.0)))
        return (
            f"audit after step {self.step}: gradient noise {self.noise:.4f} measured{expected}; "
            f"most in a layer {share.noise:.3f} ({layer or 'the model'}); saved activations {self.saved_ratio:.1f}x"
        )

    def __str__(self) -> str:
        from rich import box  # takes a while to import
        from rich.console import Console
        from rich.table import Table

        total = _sum(self.parameters.values())
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("layer")
        for heading in ("share of the error", "share of the gradient", "error / gradient"):
            table.add_column(heading, justify="right")
        for name, share in list(self.layers.items())[:N_LAYERS]:
            shares = (share.error2 / (total.error2 or 1.0), share.energy / (total.energy or 1.0))
            table.add_row(name or "(the model)", *(f"{value:.1%}" for value in shares), f"{share.noise:.4f}")
        console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.summary(), soft_wrap=True)
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def audit(session: Session, recorder: Recorder, fn: Callable[[], torch.Tensor]) -> Audit:
    """Run fn exactly and compressed, and compare the gradients of the session's parameters."""
    if not session.is_attached:
        raise ConfigError(
            "audit expected a session that is attached, got one that has ended, whose gradients are exact; "
            "call session.audit(fn) before detach(), or on a new session = slimgrad.attach(model)"
        )
    if recorder.is_on:
        raise ConfigError("audit expected to be called outside of the model's forward, got a call from inside it")
    parameters = {name: p for name, p in session.attached.parameters().items() if p.requires_grad}
    session.progress.begin_forward()  # the step before is over
    with _unnoticed(session), session.paused(), _as_before(session):
        exact = _gradients(fn, parameters)
    with _unnoticed(session) as ledger, _as_before(session):
        compressed = _gradients(fn, parameters)
    shares = {name: _share(exact[name], compressed[name]) for name in exact if name in compressed}
    ratio = ledger.snapshot().total.saved_ratio
    result = Audit(session.progress.n_steps, shares, session.tuning.noise(), ratio)
    total = _sum(shares.values()).energy
    errors = {name: share.error2 / total for name, share in result.counted.items()}
    session.tuning.audited(result.noise, errors, result.step)
    return result


def _gradients(fn: Callable[[], torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    advice = "write session.audit(lambda: criterion(model(x), y)), without backward()"
    if not callable(fn):
        raise ConfigError(f"audit expected a function that returns the loss, got {type(fn).__name__}; {advice}")
    with torch.enable_grad():
        loss = fn()
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(f"audit expected fn() to return the loss, one number with a gradient, got {got}; {advice}")
    if any(parameter.grad is not None for parameter in parameters.values()):
        raise ConfigError(f"audit expected fn() to leave backward() to it, got one that calls it; {advice}")
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: grad.detach() for name, grad in zip(parameters, grads, strict=True) if grad is not None}


@contextlib.contextmanager
def _as_before(session: Session) -> Iterator[None]:
    """Put .grad, buffers and random states back at the end, and let no data parallelism wait for a backward."""
    modules = session.attached.modules()
    buffers = [(module, dict(module._buffers)) for module in modules]  # a forward may put others in their place
    values = [(buffer, buffer.detach().clone()) for buffer in session.attached.buffers()]
    grads = [(parameter, parameter.grad) for parameter in session.attached.parameters().values()]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  # whatever fn uses
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = [] if accelerator is None else list(range(torch.accelerator.device_count()))
    kind = "cuda" if accelerator is None else accelerator.type
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices, device_type=kind))
        for module in modules:
            no_sync: Any = getattr(module, "no_sync", None)
            if no_sync is not None:
                stack.enter_context(no_sync())
        try:
            for parameter, _ in grads:
                parameter.grad = None
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            for parameter, grad in grads:
                parameter.grad = grad
            for module, own in buffers:
                module._buffers.update(own)
            for buffer, before in values:
                if not torch.equal(buffer, before):
                    buffer.detach().copy_(before)


@contextlib.contextmanager
def _unnoticed(session: Session) -> Iterator[Ledger]:
    """Keep the run out of the report, out of the count of steps, and out of what bounds learn from."""
    meter, shelf, progress = session.tuning.meter, session.shelf, session.progress
    was_on, ledger = meter.is_on, shelf.ledger
    meter.is_on, shelf.ledger = False, Ledger()
    try:
        yield shelf.ledger
    finally:
        meter.is_on, shelf.ledger = was_on, ledger
        progress.was_read = False


def _share(exact: torch.Tensor, compressed: torch.Tensor) -> Share:
    a, b = (t if t.layout is torch.strided else t.to_dense() for t in (exact, compressed))
    a, b = (t.to(torch.promote_types(t.dtype, torch.float64)) for t in (a, b))
    return Share(float(energy(a - b)), float(energy(a)))


def _sum(shares: Iterable[Share]) -> Share:
    shares = list(shares)
    return Share(sum(share.error2 for share in shares), sum(share.energy for share in shares))
