"""Bound and plan of every site, looked up once.

Step after step the same site saves the same kind of tensor. Bound and plan of its first save are remembered until a
bound has moved, unless the policy looks at more than role, dtype and device.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from slimgrad.coder import Remembered
from slimgrad.policy import Plan, RoleBound
from slimgrad.roles import Need, Role
from slimgrad.saved import Stored

if TYPE_CHECKING:
    from slimgrad.session import Session

MAX_PLANS = 1 << 14


class Plans:
    """What one thread of a session remembers."""

    def __init__(self, session: Session) -> None:
        self._policy, self._planned, self._tuning = session.policy, session.planned, session.tuning
        self._is_constant = getattr(session.policy, "is_constant", False) and session.planned is None
        self._remembered: dict[Any, Remembered] = {}
        self._states: list[Any] = []  # of the adaptive bounds, when plans were made

    def begin_forward(self) -> None:
        """Forget what follows from bounds that may have moved."""
        states = list(self._tuning.states.values())
        if len(states) != len(self._states) or not all(map(operator.is_, states, self._states)):
            self._remembered.clear()
            self._states = states

    def first(self, stored: Stored, role: Role, tensor: torch.Tensor) -> Remembered:
        """Return bound and plan for the first save of a storage."""
        key = (stored.site, role, stored.dtype, tensor.is_cpu)
        found = self._remembered.get(key)
        if found is None:
            site = stored.site
            bound = self._tuning.bound_at(site[0], site)
            found = Remembered(bound, self.plan(site, role, tensor, bound))
            if self._is_constant and role.need is not Need.INDEX and len(self._remembered) < MAX_PLANS:
                self._remembered[key] = found
        return found

    def plan(self, site: tuple[str, int], role: Role, tensor: torch.Tensor, bound: RoleBound) -> Plan:
        """Return how to keep a tensor under this bound."""
        planned = self._planned
        return self._policy.plan(role, tensor, bound) if planned is None else planned.plan(site, role, tensor, bound)
