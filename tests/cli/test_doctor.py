"""`slimgrad doctor`."""

import pytest
import torch
from typer.testing import CliRunner

from slimgrad import __version__, codecs
from slimgrad.cli import app, doctor
from slimgrad.lab.machine import EXTRAS, VARIABLES
from slimgrad.lab.self_test import Outcome


def run(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "120"})


def test_it_names_versions_kernels_extras_and_settings() -> None:
    result = run()
    assert result.exit_code == 0
    for word in (__version__, torch.__version__, "kernels", "threads", *EXTRAS, *VARIABLES):
        assert word in result.output


def test_a_missing_extra_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimgrad.lab.machine.extras", lambda: {"gpu": {"triton": None}})
    assert 'triton missing; pip install "slimgrad[gpu]"' in run().output


def test_the_self_test_visits_every_codec() -> None:
    result = run("--self-test")
    assert result.exit_code == 0
    assert "self-test passed" in result.output
    assert all(f"{name} " in result.output for name in codecs.names())


def test_a_fault_is_shown_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome("raw", torch.float32, ""), Outcome("raw", torch.bool, "3 of 9 values changed")]
    monkeypatch.setattr(doctor, "run", lambda: iter(outcomes))
    result = run("--self-test")
    assert result.exit_code == 1
    assert "bool failed: 3 of 9 values changed" in result.output
    assert "1 failed; please report" in result.output
