"""Notes: when little was compressed, the report says why and what to type."""

from __future__ import annotations

import pytest

from slimgrad.ledger import EXACT, PARAMETER, SMALL, UNKNOWN, Ledger
from slimgrad.report.notes import notes


@pytest.fixture
def ledger() -> Ledger:
    """A ledger about which there is nothing to say."""
    ledger = Ledger()
    ledger.record_pack("a", "conv input", "nested", 1000, 100, 0.0)
    ledger.record_unpack("a", "conv input", 0.0)
    ledger.record_error("a", "conv input", 1.0)
    ledger.record_kept("a", "weight", 100_000, PARAMETER)
    for reason in (SMALL, UNKNOWN, EXACT):
        ledger.record_kept("a", "x", 50, reason)
    return ledger


def test_a_good_run_needs_no_note(ledger: Ledger) -> None:
    assert notes(ledger.snapshot()) == []


def test_gradients_were_off() -> None:
    ledger = Ledger()
    ledger.record_skipped()
    ledger.record_skipped()
    (note,) = notes(ledger.snapshot())
    assert note.startswith("nothing was recorded: gradients were off in 2 forward calls")
    assert "torch.no_grad()" in note


def test_everything_was_skipped_for_another_reason() -> None:
    ledger = Ledger()
    ledger.record_skipped("inside torch.utils.checkpoint")
    assert notes(ledger.snapshot()) == ["nothing was recorded: inside torch.utils.checkpoint (1 forward calls)"]


def test_nothing_was_called() -> None:
    (note,) = notes(Ledger().snapshot())
    assert "no attached module was called" in note
    assert "model(x), not model.forward(x)" in note


def test_functions_that_were_not_recognised_are_named(ledger: Ledger) -> None:
    ledger.record_kept("a", "", 7000, UNKNOWN, "foo")
    assert notes(ledger.snapshot()) == [
        "87% of the saved bytes were not recognised and stay bit for bit: function `foo`"
    ]
    for name, size in (("bar", 9000), ("baz", 100), ("qux", 50)):
        ledger.record_kept("b", "", size, UNKNOWN, name)
    (note,) = notes(ledger.snapshot())
    assert note.endswith(": functions `bar`, `foo`, `baz`")


def test_tensors_below_min_bytes(ledger: Ledger) -> None:
    ledger.record_kept("a", "", 3000, SMALL)
    (note,) = notes(ledger.snapshot())
    assert note.startswith("73% of the saved bytes are in tensors below min_bytes")
    assert "slimgrad.attach(model, min_bytes=1024)" in note


def test_an_exact_bound(ledger: Ledger) -> None:
    ledger.record_kept("a", "", 3000, EXACT)
    (note,) = notes(ledger.snapshot())
    assert "bound is Exact()" in note
    assert "bound=slimgrad.Relative(0.25)" in note


def test_backward_was_not_run() -> None:
    ledger = Ledger()
    ledger.record_pack("a", "conv input", "nested", 1000, 100, 0.0)
    assert notes(ledger.snapshot()) == ["no coded tensor was read back yet: backward was not run"]


def test_a_broken_bound_is_our_fault_and_comes_first(ledger: Ledger) -> None:
    ledger.record_kept("a", "", 3000, SMALL)
    ledger.record_error("b", "norm input", 1.25)
    first, second = notes(ledger.snapshot())
    assert first.startswith("a sampled error was 1.25 times the bound (norm input of b): this is a defect of slimgrad")
    assert "min_bytes" in second
