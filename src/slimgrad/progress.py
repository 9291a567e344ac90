"""What a session learns from step to step, and what of it belongs into a checkpoint.

A step begins with the first forward after a backward. Hints say what turned out to be needed of a tensor: a ReLU saves
its result for its sign, the convolution after it for its values, and coding it for both at once is cheaper. A hint only
ever makes the first code stronger than was asked for, so nothing depends on it being right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from slimgrad.errors import ConfigError
from slimgrad.roles import Need, Role, role_from_dict, role_to_dict
from slimgrad.shelf import Shelf
from slimgrad.tuning import Tuning

NO_BACKWARD = -1  # the id of the backward that runs in this thread
HINTED = (Need.VALUES, Need.TIGHT, Need.EXACT)
FOREIGN = "other saved-tensor hooks around an attached module get only what slimgrad leaves as it is: {}"

Site = tuple[str, int]  # path of a module and number of the save in its forward


class Progress:
    """Steps, hints, and whose hooks were met."""

    def __init__(self, shelf: Shelf, tuning: Tuning) -> None:
        self._shelf, self._tuning = shelf, tuning
        self.n_steps = 0
        self.was_read = False  # by a backward outside of any forward
        self.hints: dict[Site, Role] = {}
        self.foreign_hooks: set[str] = set()

    def begin_forward(self) -> None:
        """End the step if a backward came between this forward and the last, and is over: a checkpoint runs within."""
        if self.was_read and torch._C._current_graph_task_id() == NO_BACKWARD:
            self.was_read = False
            self.n_steps += 1
            self._shelf.end_step()
            self._tuning.end_step(self.n_steps)

    def learn(self, site: Site, role: Role) -> None:
        """Remember that a tensor saved there was needed for more than its first saver said."""
        if role.need in HINTED:
            self.hints[site] = role

    def meet(self, hook: Any) -> None:
        """Remember that saved-tensor hooks of somebody else are around ours."""
        self.foreign_hooks.add(getattr(hook, "__qualname__", type(hook).__name__))

    def remarks(self) -> list[str]:
        """Return what a report should say beyond its numbers."""
        return [FOREIGN.format(name) for name in sorted(self.foreign_hooks)] + self._tuning.remarks()

    def state_dict(self) -> dict[str, Any]:
        self.begin_forward()  # a checkpoint is taken between steps: the last one is over
        hints = [(*site, role_to_dict(role)) for site, role in self.hints.items()]
        return {"n_steps": self.n_steps, "hints": hints, **self._tuning.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = ("n_steps", "hints", "model", "scale", "bounds")
        missing = [name for name in names if not isinstance(state, Mapping) or name not in state]
        if missing:
            got = f"something without {missing[0]!r}" if isinstance(state, Mapping) else type(state).__name__
            raise ConfigError(
                f"load_state_dict expected what session.state_dict() returned, got {got}; "
                "write session.load_state_dict(checkpoint['slimgrad']) with the key it was saved under"
            )
        try:
            hints = {(path, number): role_from_dict(role) for path, number, role in state["hints"]}
            self._tuning.load_state_dict(state, state["n_steps"] + 1)
        except ConfigError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"load_state_dict expected what session.state_dict() returned, got something damaged ({error!r}); "
                "leave it out to begin with fresh bounds"
            ) from error
        self.n_steps, self.was_read, self.hints = state["n_steps"], False, hints
