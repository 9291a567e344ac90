"""The largest batch that fits: predict from small probes, verify, back off.

    n = slimgrad.fit_batch(step, "80%")      step(n): one forward, backward and optimiser step at batch n
    print(n.log())                           every batch that was tried, predicted and measured

Peak memory is close to a + b * n. Two small probes give the line; each next batch is the largest that the line allows,
but at most GROWTH times the largest one measured, because a line through small batches is steep only later; each run
corrects it. On a CPU the system kills a process that asks for too much instead of refusing, so no batch is run whose
prediction exceeds the budget. An allocation that fails is survived: its memory is given back, and the batch is an upper
limit from then on.

`step` runs several times and really trains: give it a copy of the model, or load the state again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from slimgrad.errors import ConfigError
from slimgrad.planner.budget_size import Size, nbytes_of
from slimgrad.planner.meters import Meter, meter_of
from slimgrad.planner.out_of_memory import give_back_memory, is_out_of_memory

RESERVE = 0.05  # of the budget that stays free: COMET's share
GROWTH = 2  # largest step from a measured batch to the next: all probes together cost two of the last
MAX_TRIES = 24
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Try:
    """One batch that was run; without a peak, an allocation failed."""

    batch: int
    predicted: int | None
    peak: int | None
    fits: bool

    def __str__(self) -> str:
        predicted = "-" if self.predicted is None else f"{self.predicted / MIB:,.0f} MiB"
        peak = "allocation failed" if self.peak is None else f"{self.peak / MIB:,.0f} MiB"
        verdict = "fits" if self.fits else "too large"
        return f"batch {self.batch:>6}   predicted {predicted:>12}   peak {peak:>12}   {verdict}"


@dataclass(frozen=True, slots=True)
class Line:
    """Peak memory as a function of the batch: fixed + per_example * n bytes."""

    fixed: float
    per_example: float

    def at(self, batch: int) -> int:
        return int(self.fixed + self.per_example * batch)

    def largest(self, limit: float) -> int:
        """Return the largest batch whose prediction is within the limit."""
        return int(max(limit - self.fixed, 0.0) / self.per_example)


class FittedBatch(int):
    """The batch that fits, an ordinary number that also knows how it was found."""

    tries: tuple[Try, ...]
    line: Line | None
    budget: int  # bytes, reserve included
    limit: int  # bytes that a peak may reach
    meter: Meter
    floor: int
    ceiling: int | None
    powers_of_two: bool

    def log(self) -> str:
        """Return what was tried, one line each."""
        room = f"{self.budget / MIB:,.0f} MiB ({self.meter.name}, peak up to {self.limit / MIB:,.0f} MiB)"
        head = f"largest batch in {room}: {int(self)}"
        return "\n".join([head, *(f"  {one}" for one in self.tries)])


def fit_batch(
    step: Callable[[int], object],
    budget: Size = "auto",
    *,
    floor: int = 1,
    ceiling: int | None = None,
    powers_of_two: bool = False,
    reserve: float = RESERVE,
    device: torch.device | str | None = None,
    meter: str | Meter | None = None,
) -> FittedBatch:
    """Return the largest batch, from `floor` to `ceiling`, whose step stays within the budget less the reserve.

    ConfigError where not even the floor fits. `meter` is "resident" on a CPU and "reserved" on an accelerator unless
    said otherwise; "live" counts tensors only.
    """
    _check(floor, ceiling, reserve)
    nbytes = nbytes_of(budget, device)
    search = _Search(step, nbytes, reserve, meter_of(meter, device), floor, ceiling, powers_of_two)
    batch = FittedBatch(search.run(nbytes))
    batch.tries, batch.line, batch.budget, batch.limit = tuple(search.tries), search.line, nbytes, search.limit
    batch.meter, batch.floor, batch.ceiling, batch.powers_of_two = search.meter, floor, ceiling, powers_of_two
    return batch


def rounded(batch: int, powers_of_two: bool) -> int:
    """Return the batch, or the largest power of two in it."""
    return 1 << (batch.bit_length() - 1) if powers_of_two and batch > 0 else batch


class _Search:
    """Probes of one fit: the largest batch that fits so far, the smallest that does not, and the line through them."""

    def __init__(
        self,
        step: Callable[[int], object],
        budget: int,
        reserve: float,
        meter: Meter,
        floor: int,
        ceiling: int | None,
        powers_of_two: bool,
    ) -> None:
        self.step, self.meter, self.powers_of_two = step, meter, powers_of_two
        self.limit, self.share = int(budget * (1 - reserve)), 1 - reserve
        self.floor = floor if rounded(floor, powers_of_two) == floor else rounded(2 * floor, True)
        self.ceiling = rounded(ceiling, powers_of_two) if ceiling is not None else None
        self.tries: list[Try] = []
        self.line: Line | None = None
        self.fits = 0
        self.too_large: int | None = None
        self.failed: int | None = None  # the smallest batch whose allocations failed, whatever the budget says

    def run(self, budget: int) -> int:
        """Return the largest batch that fits."""
        self.try_one(self.floor)  # the first step of all makes optimiser state and loads libraries ...
        if self.fits and self._is_allowed(2 * self.floor):
            self.tries.clear()
            self.try_one(self.floor)  # ... and says little about the next
        if not self.fits:
            peak = self.tries[-1].peak
            got = "a failed allocation" if peak is None else f"a peak of {peak / MIB:,.0f} MiB"
            raise ConfigError(
                f"expected a batch of {self.floor} to fit in {budget / MIB:,.0f} MiB less the reserve, got {got}; "
                "a larger budget, smaller inputs, or slimgrad.attach(model) with a coarser bound would help"
            )
        while len(self.tries) < MAX_TRIES:
            batch = self.next_batch()
            if batch is None:
                break
            self.try_one(batch)
        return self.fits if self.failed is None else self._back_off(self.failed)

    def _back_off(self, failed: int) -> int:
        """Return a batch with the reserve between it and a failed one, which has run since: malloc may have less room.

        glibc takes another 64 MiB of address space when an allocation fails, and keeps it.
        """
        while True:
            batch = max(self.floor, min(self.fits, rounded(int(self.share * failed), self.powers_of_two)))
            self.try_one(batch)
            if self.tries[-1].fits or batch == self.floor:
                return batch
            failed = batch

    def next_batch(self) -> int | None:
        """Return the batch to run next: the largest that should fit; None when the answer is known."""
        top = GROWTH * self.fits
        if self.line is not None:
            top = min(top, self.line.largest(self.limit))
        if self.too_large is not None and top >= self.too_large:  # the line was wrong there: between the two
            top = (self.fits + self.too_large) // 2
        if self.ceiling is not None:
            top = min(top, self.ceiling)
        top = rounded(top, self.powers_of_two)
        return top if top > self.fits and self._is_allowed(top) else None

    def _is_allowed(self, batch: int) -> bool:
        is_below = self.too_large is None or batch < self.too_large
        return is_below and (self.ceiling is None or batch <= self.ceiling)

    def try_one(self, batch: int) -> None:
        """Run one step and learn from it."""
        predicted = None if self.line is None else self.line.at(batch)
        peak = self._peak_of(batch)
        fits = peak is not None and peak <= self.limit
        self.tries.append(Try(batch, predicted, peak, fits))
        if peak is None:
            self.failed = batch if self.failed is None else min(batch, self.failed)
        if fits:
            self.fits = max(self.fits, batch)
        elif self.too_large is None or batch < self.too_large:
            self.too_large = batch
        self.line = _line(self.tries) or self.line

    def _peak_of(self, batch: int) -> int | None:
        try:
            peak = self.meter.peak_of(lambda: self.step(batch))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            give_back_memory(error)
            return None
        return peak


def _line(tries: list[Try]) -> Line | None:
    """Return the line through the two largest batches measured: where the answer lies, it is the best."""
    peaks = dict(sorted({one.batch: one.peak for one in tries if one.peak is not None}.items())[-2:])
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = peaks.items()
    slope = max((high - low) / (large - small), 1.0)  # bytes; a peak that did not grow says nothing
    return Line(high - slope * large, slope)


def _check(floor: int, ceiling: int | None, reserve: float) -> None:
    if not isinstance(floor, int) or floor < 1:
        raise ConfigError(f"expected floor to be a batch of at least 1, got {floor!r}")
    if ceiling is not None and (not isinstance(ceiling, int) or ceiling < floor):
        raise ConfigError(f"expected ceiling to be a batch of at least floor={floor}, got {ceiling!r}")
    if not 0 <= reserve < 1:
        raise ConfigError(f"expected reserve to be a share of the budget below 1, got {reserve!r}; the default is 0.05")
