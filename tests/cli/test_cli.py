"""The command itself: its verbs, its errors, and the ways to start it."""

import subprocess
import sys

import pytest

from slimgrad import ConfigError, cli


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "doctor" in shown
    assert "bench" in shown


def test_an_unknown_verb_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["docter"])
    assert stop.value.code == 2
    assert "docter" in capsys.readouterr().err


def fail(*args: object, **kwargs: object) -> None:
    raise ConfigError("expected [this], got that")


def test_an_error_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIMGRAD_DEBUG", raising=False)
    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "slimgrad: expected [this], got that\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMGRAD_DEBUG", "1")
    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ConfigError):
        cli.main([])


def test_python_m_slimgrad_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "slimgrad", "--help"], capture_output=True, text=True, check=True)
    assert "doctor" in done.stdout
