"""The table and the dict show the numbers that were measured."""

from __future__ import annotations

import io
import json

from rich.console import Console

from slimgrad.lab.arms import Setup
from slimgrad.lab.peak import Weight
from slimgrad.lab.steps import Times
from slimgrad.lab.steps_table import Result, table

TIMES = Times({"plain": [1.0, 1.0], "slim": [0.9, 0.9], "checkpoint": [1.3, 1.3]})
WEIGHTS = {
    "live": {"plain": Weight(1 << 20, 9 << 20, "conv"), "slim": Weight(1 << 20, 3 << 20, "conv", 14.25, 16.0)},
}


def shown(result):
    console = Console(file=io.StringIO(), width=200)
    console.print(table([result]))
    return console.file.getvalue()


def test_a_full_row():
    text = shown(Result(Setup("resnet18", 32), TIMES, TIMES, WEIGHTS))
    title, _, plain, slim, checkpoint = [line for line in text.splitlines() if line.strip()]
    assert "resnet18, batch 32" in title
    assert "8 MiB" in plain
    for cell in ("0.900 s", "0.900 [0.90-0.90]", "2 MiB", "4.00x", "14.25x"):
        assert cell in slim
    assert "1.300 [1.30-1.30]" in checkpoint


def test_what_was_not_measured_is_not_shown():
    text = shown(Result(Setup("resnet18", 32), TIMES))
    assert "MiB" not in text
    assert "1.300" in text
    assert "slim" not in shown(Result(Setup("resnet18", 32)))


def test_the_dict_is_json_with_the_same_ratios():
    result = json.loads(json.dumps(Result(Setup("resnet18", 32), TIMES, None, WEIGHTS).to_dict()))
    assert result["times"]["arms"]["slim"]["ratio"]["median"] == 0.9
    assert result["peak"]["live"]["slim"]["ratio"] == 4.0
    assert result["huge_pages"] is None
    assert result["setup"]["model"] == "resnet18"
