"""`slimgrad plan`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from slimgrad.cli import app
from slimgrad.errors import ConfigError
from slimgrad.lab import plan_table

SMALL = ["plan", "resnet18", "--batch", "4", "--size", "32", "--device", "t4"]


@pytest.fixture(autouse=True)
def _one_way(monkeypatch):
    monkeypatch.setattr(plan_table, "ways", lambda setup: {"plain": plan_table.Way({}, "plain")})


def test_it_prints_json():
    result = CliRunner().invoke(app, [*SMALL, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["device"]["name"] == "t4"
    assert [row["way"] for row in found["rows"]] == ["plain"]


def test_it_prints_a_table():
    result = CliRunner().invoke(app, SMALL)
    assert result.exit_code == 0, result.output
    assert "Times are estimates" in result.output


def test_wrong_words_are_errors():
    for words in (["plan", "resnet18", "--device", "abacus"], [*SMALL, "--autocast", "int3"]):
        assert isinstance(CliRunner().invoke(app, words).exception, ConfigError)
