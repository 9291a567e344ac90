"""The examples are short, change one line, run, and learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
REACHES = {"cnn": 0.7, "transformer": 0.9}  # share of right answers; guessing gives a tenth


@pytest.mark.parametrize("name", REACHES)
def test_an_example_trains_and_reports(name, capsys):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() >= REACHES[name]
    assert "saved" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_changes_one_line(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    assert path.stem in REACHES
    assert sum("slimgrad.attach(" in line for line in lines) == 1
    assert sum("the one changed line" in line for line in lines) == 1
