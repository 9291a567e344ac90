"""The table of `slimgrad plan`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slimgrad.lab.arms import Setup
from slimgrad.lab.plan_table import make, render
from slimgrad.lab.predictions import predict_arm
from slimgrad.planner.hardware import device_of

SETUP = Setup("resnet18", batch=16, size=64)
MIB = 1 << 20


@pytest.fixture(scope="module")
def plan():
    return make(SETUP, replace(device_of("v100-16gb"), memory=512 * MIB))


def test_memory_is_what_the_planner_predicts(plan):
    rows = {row.way: row for row in plan.rows}
    for way, arm in (("plain", "plain"), ("slimgrad", "slim"), ("checkpoint", "checkpoint")):
        assert rows[way].peak == predict_arm(SETUP, arm).peak
    assert rows["slimgrad"].stored < plan.saved / 8
    assert rows["swap (vDNN)"].stored < rows["slimgrad"].stored
    assert rows["swap (vDNN)"].peak == rows["cDMA"].peak
    assert rows["FreeLunch"].stored == pytest.approx(plan.saved / 5, rel=0.1)


def test_the_largest_batch_fits_and_one_tenth_more_does_not(plan):
    for row in plan.rows:
        if row.way in ("plain", "slimgrad"):
            arm = "plain" if row.way == "plain" else "slim"
            limit = 0.95 * 512 * MIB
            assert predict_arm(replace(SETUP, batch=row.largest_batch), arm).peak <= limit
            assert predict_arm(replace(SETUP, batch=int(row.largest_batch * 1.2)), arm).peak > limit


def test_times_are_in_order(plan):
    assert [row.way for row in plan.rows] == ["plain", "checkpoint", "swap (vDNN)", "cDMA", "FreeLunch", "slimgrad"]
    seconds = {row.way: row.seconds for row in plan.rows}
    assert seconds["plain"] < seconds["slimgrad"] < seconds["checkpoint"]
    assert seconds["cDMA"] < seconds["swap (vDNN)"]


def test_the_text_says_what_is_assumed(plan):
    text = render(plan)
    assert "largest batch" in text
    assert all(assumption in text for assumption in plan.assumptions)
    assert "never measured on a GPU" in text
