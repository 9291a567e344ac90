"""What a user should know about a report, in sentences: why little was compressed, and what to type.

Each rule looks at the sums of a ledger and returns a sentence or nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from slimgrad.ledger import EXACT, NO_GRAD, SMALL, UNKNOWN, Snapshot, Sums

WORTH_A_NOTE = 0.1  # share of the saved bytes


def notes(snapshot: Snapshot) -> list[str]:
    """Return what stands out, the most important first."""
    total = snapshot.total
    if total.is_empty:
        return [_why_nothing(snapshot)]
    return [note for rule in RULES if (note := rule(total))]


def _why_nothing(snapshot: Snapshot) -> str:
    skipped = snapshot.total.skipped
    if skipped.get(NO_GRAD):
        return (
            f"nothing was recorded: {NO_GRAD} in {skipped[NO_GRAD]} forward calls; "
            "was the model called under torch.no_grad() or torch.inference_mode()?"
        )
    if skipped:
        reasons = ", ".join(f"{reason} ({n} forward calls)" for reason, n in skipped.items())
        return f"nothing was recorded: {reasons}"
    return (
        "nothing was recorded: no attached module was called, or nothing in it requires gradients; call model(x), "
        "not model.forward(x), on the object that was passed to slimgrad.attach()"
    )


def _broken_bound(total: Sums) -> str | None:
    worst = max(total.coded.items(), key=lambda item: item[1].worst_error, default=None)
    if worst is None or worst[1].worst_error <= 1.0:
        return None
    (path, role), coded = worst
    return (
        f"a sampled error was {coded.worst_error:.3g} times the bound ({role} of {path or 'the model'}): "
        "this is a defect of slimgrad, please report it with the output of: slimgrad doctor"
    )


def _not_recognised(total: Sums) -> str | None:
    share, details = _kept_share(total, UNKNOWN)
    if share < WORTH_A_NOTE:
        return None
    names = ", ".join(f"`{name}`" for name in details[:3])
    where = f": function {names}" if len(details) == 1 else f": functions {names}" if names else ""
    return f"{share:.0%} of the saved bytes were not recognised and stay bit for bit{where}"


def _too_small(total: Sums) -> str | None:
    share, _ = _kept_share(total, SMALL)
    if share < WORTH_A_NOTE:
        return None
    return f"{share:.0%} of the saved bytes are in tensors below min_bytes; try: slimgrad.attach(model, min_bytes=1024)"


def _kept_exact(total: Sums) -> str | None:
    share, _ = _kept_share(total, EXACT)
    if share < WORTH_A_NOTE:
        return None
    return (
        f"{share:.0%} of the saved bytes stay as they are because the bound is Exact() and no lossless code makes them "
        "smaller; try: slimgrad.attach(model, bound=slimgrad.Relative(0.25))"
    )


def _no_backward(total: Sums) -> str | None:
    if not total.coded or any(coded.n_unpacked for coded in total.coded.values()):
        return None
    return "no coded tensor was read back yet: backward was not run"


RULES: tuple[Callable[[Sums], str | None], ...] = (
    _broken_bound,
    _not_recognised,
    _too_small,
    _kept_exact,
    _no_backward,
)


def _kept_share(total: Sums, reason: str) -> tuple[float, list[str]]:
    """Return which part of the saved bytes is kept for this reason, and the details given, the largest first."""
    by_detail: dict[str, int] = {}
    for (_, _, why, detail), count in total.kept.items():
        if why == reason:
            by_detail[detail] = by_detail.get(detail, 0) + count.nbytes
    details = [detail for detail in sorted(by_detail, key=lambda name: -by_detail[name]) if detail]
    return sum(by_detail.values()) / max(total.saved_in, 1), details
