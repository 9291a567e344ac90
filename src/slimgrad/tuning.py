"""The bounds of a session from step to step: which holds where, what they ask for, what they have learnt.

One bound holds for the whole model, others may hold where rules say so. Each adaptive one has a state of its own, and
is shown only what was measured where it holds, in the steps for which it asked. Errors are followed to other layers
for one bound at a time, since what errors of two do together says nothing about either. All of it is in state_dict(),
so a resumed run takes the same bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from slimgrad.attached import Attached
from slimgrad.bounds.base import NOTHING, Adaptive, Fixed, Reading, Request, RoleBound, Site, State
from slimgrad.bounds.fixed import Exact
from slimgrad.errors import ConfigError
from slimgrad.measure import Meter

NO_STATE: State = {}  # of bounds that stay as they are
DIGEST_LENGTH = 16  # hexadecimal digits


class Tuning:
    """The adaptive bounds of one session, their states, and the meter that measures for them."""

    def __init__(self, attached: Attached, optimizer: torch.optim.Optimizer | None = None) -> None:
        _check_kind(optimizer)
        self._attached = attached
        self.meter = Meter(attached.parameters)
        self.meter.optimizer = optimizer
        bounds = dict.fromkeys((attached.bound, *attached.rules.values()))
        self.states: dict[Adaptive, State] = {
            bound: bound.start() for bound in bounds if not isinstance(bound, Fixed)
        }  # those that stay as they are need none
        for bound in self.states:
            _check_optimizer(bound, optimizer, attached)
        self._requests: dict[Adaptive, Request] = {}
        self.begin_step(1)

    def bound_at(self, path: str, site: Site) -> RoleBound:
        """Return the bound for a tensor saved in the module at this path, at this site."""
        bound = self._attached.bound_of(path)
        return bound.at(site, self.states.get(bound, NO_STATE))

    def begin_step(self, step: int) -> None:
        """Ask the bounds what they want measured in this step."""
        if self.states:
            self._requests = {bound: bound.wants(step, state) for bound, state in self.states.items()}
            self.meter.begin(step, _union(list(self._requests.values()), step))

    def end_step(self, step: int) -> None:
        """Give the bounds what was measured, and begin the step that follows `step`."""
        if not self.states:
            return
        reading = self.meter.end()
        if reading is not None:
            for bound, state in self.states.items():
                if not self._requests[bound].is_empty:
                    self.states[bound] = bound.update(state, self._part_for(bound, reading))
        self.begin_step(step + 1)

    def noise(self) -> float | None:
        """Return the share of the gradient's energy that all bounds together expect their errors to be."""
        known = [share for bound, state in self.states.items() if (share := bound.noise(state)) is not None]
        return sum(known) if known else None

    def audited(self, noise: float, layers: Mapping[str, float], step: int) -> None:
        """Tell the bounds what an audit has measured, in all and in layers, as shares of the whole gradient's energy.

        What the errors of several bounds are together says nothing about one of them, unless the others are exact.
        """
        others = {self._attached.bound, *self._attached.rules.values()} - self.states.keys()
        if len(self.states) == 1 and others <= {Exact()}:
            (bound,) = self.states
            learn = getattr(bound, "audited", None)
            if learn is not None:
                self.states[bound] = learn(self.states[bound], noise, layers, step)

    def remarks(self) -> list[str]:
        """Return what a report should say about the bounds."""
        return [line for bound, state in self.states.items() for line in getattr(bound, "remarks", _none)(state)]

    def _part_for(self, bound: Adaptive, reading: Reading) -> Reading:
        if len(self.states) == 1 and not self._attached.rules:
            return reading
        sites = tuple(one for one in reading.sites if self._attached.bound_of(one.site[0]) == bound)
        mine = {one.site for one in sites}
        return replace(reading, sites=sites, errors=tuple(e for e in reading.errors if mine.issuperset(e.sites)))

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": _digest(self._attached.parameters()),
            "scale": self.meter.scale.value,
            "bounds": {repr(bound): state for bound, state in self.states.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Go on from a state; bounds that it knows nothing of begin anew."""
        own, other = _digest(self._attached.parameters()), state["model"]
        if other != own:
            raise ConfigError(
                f"expected the state of a session on this model (parameters {own}), got that of another ({other}); "
                "attach to a model with the same parameter names and shapes, then call load_state_dict(state)"
            )
        states = {bound: state["bounds"].get(repr(bound), bound.start()) for bound in self.states}
        for bound, known in states.items():
            missing = bound.start().keys() - known.keys()  # as those of earlier versions may be
            if missing := missing or getattr(bound, "missing", _no_keys)(known):
                raise ConfigError(
                    f"expected a state of {bound!r} as session.state_dict() returns it, got one without "
                    f"{', '.join(sorted(missing))}; leave it out to begin with fresh bounds"
                )
            bound.wants(step, known)  # what is no state fails here, before anything has changed
        self.meter.scale.value, self.states = float(state["scale"]), states
        self.begin_step(step)


def _union(requests: list[Request], step: int) -> Request:
    gradients = _union_of_sites([request.gradients for request in requests])
    errors = _union_of_sites([request.errors for request in requests])
    looks = frozenset[Site]().union(*(request.looks for request in requests))
    follow = [one for one in requests if one.travels != frozenset() or one.at_once != ()] or [NOTHING]
    followed = follow[step % len(follow)]
    asking = [one for one in requests if not one.is_empty]
    is_look, is_rough = all(one.is_look for one in asking), all(one.is_rough for one in asking)
    return Request(gradients, errors, followed.travels, looks, followed.at_once, is_look, is_rough)


def _union_of_sites(sets: list[frozenset[Site] | None]) -> frozenset[Site] | None:
    known = [sites for sites in sets if sites is not None]
    return frozenset().union(*known) if len(known) == len(sets) else None


def _digest(parameters: Mapping[str, torch.Tensor]) -> str:
    shapes = {name: "lazy" if is_lazy(p) else str(list(p.shape)) for name, p in parameters.items()}
    words = [name + shape for name, shape in sorted(shapes.items())]
    return f"{len(words)}:{hashlib.sha256(' '.join(words).encode()).hexdigest()[:DIGEST_LENGTH]}"


def _check_kind(optimizer: Any) -> None:
    """Raise ConfigError unless this looks like one optimizer; wrappers of one need not be of its class."""
    if optimizer is None or hasattr(optimizer, "param_groups"):
        return
    advice = "optimizer=scheduler.optimizer" if hasattr(optimizer, "optimizer") else "optimizer=torch.optim.SGD(...)"
    raise ConfigError(
        f"expected optimizer to be the optimizer that training steps, got {type(optimizer).__name__}; write {advice}"
    )


def _check_optimizer(bound: Adaptive, optimizer: torch.optim.Optimizer | None, attached: Attached) -> None:
    if not getattr(bound, "needs_optimizer", False):
        return
    advice = f"write slimgrad.attach(model, bound={bound!r}, optimizer=optimizer)"
    if optimizer is None:
        raise ConfigError(f"{bound!r} expected the optimizer, whose momentum it reads, got none; {advice}")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not held & {id(parameter) for parameter in attached.parameters().values()}:
        raise ConfigError(
            f"expected an optimizer that holds parameters of the model, got one that holds none; {advice}"
        )


def _none(state: State) -> list[str]:
    return []


def _no_keys(state: State) -> set[str]:
    return set()
