"""What pack leaves as it is: kept, or given to other hooks, and counted."""

from __future__ import annotations

import torch
from scenes import random

from slimgrad.ledger import Ledger
from slimgrad.leftovers import Leftovers
from slimgrad.saved import Kept


def test_what_is_kept_goes_to_hooks_around_ours():
    left, x = Leftovers(), random(64, 64, grad=False)
    left.outer = (lambda tensor: tensor * 2, lambda packed: packed / 2)
    passed = left.keep(x)
    assert torch.equal(passed.packed, 2 * x) and torch.equal(passed.restore(), x)
    left.end_forward(Ledger())
    assert isinstance(left.keep(x), Kept)


def test_what_was_left_is_counted_when_the_forward_ends():
    left, ledger = Leftovers(), Ledger()
    left.small_sizes += [8, 16]
    left.leave(random(64, 64, grad=False), "parameter")
    left.end_forward(ledger)
    left.end_forward(ledger)
    kept = ledger.snapshot().total.kept
    assert {reason: (count.n, count.nbytes) for (_, _, reason, _), count in kept.items()} == {
        "below min_bytes": (2, 24),
        "parameter": (1, 64 * 64 * 4),
    }
