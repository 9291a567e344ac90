"""What was saved, how small it became, how long that took: per module and role.

The session records one event per saved or restored tensor; everything else here is arithmetic on those events:

    record_pack      a tensor was coded
    record_kept      a tensor stays as it is, with the reason
    record_repeat    a storage that was already counted was saved again: plain PyTorch shares it, so it counts once
    record_unpack    a coded tensor was restored
    record_error     |error| / bound of a sampled tensor
    record_skipped   a forward was not recorded at all, with the reason

Recording is one append to a deque, which is safe from any thread and costs a fraction of a microsecond; the events are
folded into sums when a step ends or a snapshot is asked for.

Bytes in are those of the distinct storages that plain PyTorch would hold for backward. What is no activation (the
reasons in NOT_ACTIVATIONS) is listed but is part of no ratio.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

SMALL = "below min_bytes"
UNKNOWN = "not recognised"
EXACT = "exact rule"
PARAMETER = "parameter"
BUFFER = "buffer"
INPUT = "input kept by reference"
NOT_ACTIVATIONS = frozenset({PARAMETER, BUFFER, INPUT})
NO_GRAD = "gradients were off"
FOLD_AT = 1 << 14  # events that may wait when nobody ends the step

_PACK, _KEPT, _REPEAT, _UNPACK, _ERROR, _SKIPPED = range(6)


@dataclass(slots=True)
class Coded:
    """Sums over the coded tensors of one module and role."""

    n: int = 0
    nbytes_in: int = 0
    nbytes_out: int = 0
    encode_seconds: float = 0.0
    n_unpacked: int = 0
    decode_seconds: float = 0.0
    worst_error: float = 0.0  # largest sampled |error| / bound; 0 where none was sampled
    codecs: set[str] = field(default_factory=set)

    def add(self, other: Coded) -> None:
        self.n += other.n
        self.nbytes_in += other.nbytes_in
        self.nbytes_out += other.nbytes_out
        self.encode_seconds += other.encode_seconds
        self.n_unpacked += other.n_unpacked
        self.decode_seconds += other.decode_seconds
        self.worst_error = max(self.worst_error, other.worst_error)
        self.codecs |= other.codecs


@dataclass(slots=True)
class Count:
    """A number of tensors and their bytes."""

    n: int = 0
    nbytes: int = 0

    def add(self, other: Count) -> None:
        self.n += other.n
        self.nbytes += other.nbytes


@dataclass(slots=True)
class Sums:
    """Everything recorded over a step, or over all steps."""

    coded: dict[tuple[str, str], Coded] = field(default_factory=dict)  # by module path and role
    kept: dict[tuple[str, str, str, str], Count] = field(default_factory=dict)  # path, role, reason, detail
    repeats: dict[tuple[str, str], Count] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)  # forward calls by the reason

    def add(self, other: Sums) -> None:
        for key, coded in other.coded.items():
            self.coded.setdefault(key, Coded()).add(coded)
        for key, count in other.kept.items():
            self.kept.setdefault(key, Count()).add(count)
        for key, count in other.repeats.items():
            self.repeats.setdefault(key, Count()).add(count)
        for reason, n in other.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + n

    def copy(self) -> Sums:
        same = Sums()
        same.add(self)
        return same

    @property
    def is_empty(self) -> bool:
        """Whether no saved tensor was recorded."""
        return not (self.coded or self.kept or self.repeats)

    @property
    def coded_in(self) -> int:
        return sum(coded.nbytes_in for coded in self.coded.values())

    @property
    def coded_out(self) -> int:
        return sum(coded.nbytes_out for coded in self.coded.values())

    @property
    def kept_activations(self) -> int:
        """Bytes of activations that stay as they are."""
        return sum(count.nbytes for (_, _, reason, _), count in self.kept.items() if reason not in NOT_ACTIVATIONS)

    @property
    def saved_in(self) -> int:
        """Bytes of activations that plain PyTorch would hold for backward."""
        return self.coded_in + self.kept_activations

    @property
    def saved_out(self) -> int:
        """Bytes that are held instead."""
        return self.coded_out + self.kept_activations

    @property
    def coded_ratio(self) -> float:
        """Original / stored bytes over the coded tensors."""
        return ratio(self.coded_in, self.coded_out)

    @property
    def saved_ratio(self) -> float:
        """Original / stored bytes over all saved activations."""
        return ratio(self.saved_in, self.saved_out)


@dataclass(slots=True)
class Snapshot:
    """What a ledger held at one moment; it does not change any more."""

    n_steps: int  # in which anything was saved, the running one included
    total: Sums
    last: Sums  # the last step in which anything was recorded


class Ledger:
    """Counts events and sums them up, by step and in all."""

    def __init__(self) -> None:
        self._events: deque[tuple] = deque()
        self._lock = threading.Lock()
        self._n_steps = 0
        self._total = Sums()  # of the steps that have ended
        self._last = Sums()
        self._step = Sums()

    def record_pack(
        self, path: str, role: str, codec: str, nbytes_in: int, nbytes_out: int, seconds: float, n: int = 1
    ) -> None:
        """Note a coded tensor. A blob that replaces another first takes it back: n=-1, both sizes negative."""
        events = self._events  # _note() written out, as in record_unpack: these two are called for every coded tensor
        events.append((_PACK, path, role, codec, nbytes_in, nbytes_out, seconds, n))
        if len(events) > FOLD_AT:
            self._fold()

    def record_kept(self, path: str, role: str, nbytes: int, reason: str, detail: str = "", n: int = 1) -> None:
        """Note tensors that stay as they are; `detail` may name the function that saved them."""
        self._note((_KEPT, path, role, nbytes, reason, detail, n))

    def record_repeat(self, path: str, role: str, nbytes: int) -> None:
        """Note that a storage which is already counted was saved again."""
        self._note((_REPEAT, path, role, nbytes))

    def record_unpack(self, path: str, role: str, seconds: float) -> None:
        """Note a decoded tensor."""
        events = self._events
        events.append((_UNPACK, path, role, seconds))
        if len(events) > FOLD_AT:
            self._fold()

    def record_error(self, path: str, role: str, fraction: float) -> None:
        """Note the worst |error| / bound found in a sampled tensor."""
        self._note((_ERROR, path, role, fraction))

    def record_skipped(self, reason: str = NO_GRAD) -> None:
        """Note a forward of an attached module in which nothing was recorded."""
        self._note((_SKIPPED, "", "", reason))

    def next_step(self) -> None:
        """End one step and begin the next; one in which nothing was saved does not count."""
        self._fold()
        with self._lock:
            self._total.add(self._step)
            if not self._step.is_empty:
                self._n_steps += 1
                self._last = self._step
            self._step = Sums()

    def snapshot(self) -> Snapshot:
        """Return copies of all sums."""
        self._fold()
        with self._lock:
            total = self._total.copy()
            total.add(self._step)
            if self._step.is_empty:
                return Snapshot(self._n_steps, total, self._last.copy())
            return Snapshot(self._n_steps + 1, total, self._step.copy())

    def clear(self) -> None:
        """Forget everything recorded so far."""
        with self._lock:
            self._events.clear()
            self._n_steps = 0
            self._total, self._last, self._step = Sums(), Sums(), Sums()

    def _note(self, event: tuple) -> None:
        self._events.append(event)
        if len(self._events) > FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        with self._lock:
            events = self._events
            # at least so many; an event that another thread adds meanwhile waits for the next fold
            _fold(self._step, [events.popleft() for _ in range(len(events))])


def ratio(nbytes_in: int, nbytes_out: int) -> float:
    """Return original / stored bytes; 1.0 where there is nothing."""
    if nbytes_in == 0:
        return 1.0
    return nbytes_in / nbytes_out if nbytes_out else float("inf")


def _fold(sums: Sums, events: list[tuple]) -> None:
    by_key = sums.coded
    for event in events:
        kind = event[0]
        if kind == _PACK:
            _, path, role, codec, nbytes_in, nbytes_out, seconds, n = event
            coded = by_key.get((path, role)) or _new(sums, path, role)
            coded.n += n
            coded.nbytes_in += nbytes_in
            coded.nbytes_out += nbytes_out
            coded.encode_seconds += seconds
            coded.codecs.add(codec)
        elif kind == _UNPACK:
            _, path, role, seconds = event
            coded = by_key.get((path, role)) or _new(sums, path, role)
            coded.n_unpacked += 1
            coded.decode_seconds += seconds
        else:
            _fold_rare(sums, *event)


def _new(sums: Sums, path: str, role: str) -> Coded:
    coded = sums.coded[path, role] = Coded()
    return coded


def _fold_rare(sums: Sums, kind: int, path: str, role: str, *details: Any) -> None:
    if kind == _KEPT:
        nbytes, reason, detail, n = details
        sums.kept.setdefault((path, role, reason, detail), Count()).add(Count(n, nbytes))
    elif kind == _REPEAT:
        sums.repeats.setdefault((path, role), Count()).add(Count(1, *details))
    elif kind == _SKIPPED:
        (reason,) = details
        sums.skipped[reason] = sums.skipped.get(reason, 0) + 1
    else:
        coded = sums.coded.get((path, role)) or _new(sums, path, role)
        coded.worst_error = max(coded.worst_error, *details)
