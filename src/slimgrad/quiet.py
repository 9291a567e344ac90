"""Which modules save small tensors only, so that nobody has to know which function is running while they do.

    quiet.begin(path, nbytes)       an outermost forward with inputs of so many bytes
    path in quiet                   whether the module there was quiet in the last such forward
    quiet.note(path, is_loud)       what one call of a module turned out to be
    quiet.end()

Sizes of inputs are told apart, so that a first step with a tiny batch says nothing about the steps that follow. A
module that was loud once is quiet no more.
"""

from __future__ import annotations

MAX_SIZES = 64  # of inputs that are remembered


class Quiet:
    """The quiet modules of one thread."""

    def __init__(self) -> None:
        self._by_size: dict[tuple[str, int], set[str]] = {}  # by path of the outermost module and size of its inputs
        self._loud: set[str] = set()
        self._size = ("", 0)
        self._before: set[str] = set()
        self._now: set[str] = set()

    def begin(self, path: str, nbytes: int) -> None:
        """Recall the last forward with inputs of this size."""
        self._size = path, nbytes
        self._before = self._by_size.get(self._size, set())

    def __contains__(self, path: str) -> bool:
        return path in self._before

    def note(self, path: str, is_loud: bool) -> None:
        """Remember one call of a module: whether it saved a tensor that is large enough to be coded."""
        (self._loud if is_loud else self._now).add(path)

    def end(self) -> None:
        """Remember who was quiet in every call, in this forward and before."""
        if len(self._by_size) >= MAX_SIZES:
            self._by_size.clear()
        self._by_size[self._size] = self._now - self._loud
        self._before, self._now, self._size = set(), set(), ("", 0)
