"""One run, step by step."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from slimgrad.errors import ConfigError
from slimgrad.lab.recipe import Recipe
from slimgrad.lab.run import Run

TINY = Recipe("tiny_nets:cnn", "random", size=16, steps=4, batch=4)


@pytest.fixture
def run():
    made = Run(TINY.filled())
    yield made
    made.close()


def test_a_step_trains_and_a_test_does_not(run: Run) -> None:
    before = [p.clone() for p in run.model.parameters()]
    run.step()
    after = [p.clone() for p in run.model.parameters()]
    assert not all(map(torch.equal, before, after))
    statistics = [b.clone() for b in run.model.buffers()]
    assert run.test()
    assert run.model.training
    assert all(map(torch.equal, after, run.model.parameters()))
    assert all(map(torch.equal, statistics, run.model.buffers()))


def test_a_run_that_diverges_ends_and_says_what_to_try(run: Run) -> None:
    with torch.no_grad():
        next(run.model.parameters()).fill_(float("nan"))
    with pytest.raises(ConfigError, match=r"finite loss, got nan at step 1 of tiny_nets:cnn.* --lr 0\.1"):
        run.step()
    assert run.done == 0


def test_a_test_is_the_mean_over_all_that_is_held_out(run: Run) -> None:
    run.test()
    run.model.eval()
    x, y = (torch.cat(part) for part in zip(*run.source.held_out(4), strict=True))
    with torch.no_grad():
        logits = run.model(x)
    (found,) = run.history.test
    assert found["loss"] == pytest.approx(float(run.criterion(logits, y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()))


def test_a_test_that_is_stopped_leaves_no_trace(run: Run) -> None:
    assert not run.test(lambda: True)
    assert run.history.test == []
    assert run.model.training


def test_an_audit_is_only_looked_at(run: Run) -> None:
    """Two runs, one of them audited, take the same bounds and weights."""
    other = Run(TINY.filled())
    for step in range(4):
        for one in (run, other):
            one.step()
        if step != 3:
            other.audit()
    assert len(other.history.noise) == 3
    assert other.session.state_dict() == run.session.state_dict()
    assert all(map(torch.equal, run.model.parameters(), other.model.parameters()))
    other.close()


def test_text_is_judged_byte_by_byte() -> None:
    recipe = Recipe("gpt", "random", size=8, steps=2, batch=2, options={"width": 16, "depth": 1, "heads": 2})
    run = Run(replace(recipe, options={**recipe.options, "classes": 10}).filled())
    run.step()
    assert run.source.unit == "tokens"
    assert run.test()
    run.close()


def test_an_lstm_reads_rows() -> None:
    run = Run(Recipe("lstm", "fashion-mnist", steps=1, batch=4, size=16).filled())
    run.step()
    assert run.history.loss == pytest.approx(2.3, abs=0.5)
    run.close()


def test_the_memory_of_an_audit_is_not_that_of_the_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"now": run._resident_before + 100}
    monkeypatch.setattr("slimgrad.lab.run.resident_peak", lambda: peaks["now"])
    monkeypatch.setattr("slimgrad.lab.run.reset_resident_peak", lambda: peaks.update(now=run._resident_before + 30))
    monkeypatch.setattr(run.session, "audit", lambda fn: peaks.update(now=run._resident_before + 999) or AUDITED)
    run.audit()
    assert run.peak_resident() == 100


AUDITED = SimpleNamespace(noise=0.01, expected=None, saved_ratio=8.0)


def test_random_rows_are_read_as_they_are() -> None:
    run = Run(Recipe("lstm", "random", steps=1, batch=4, arm="plain", options={"width": 8}, threads=1).filled())
    run.step()
    assert run.done == 1
    run.close()
