"""Predictions of the lab's models; bench/prediction.py has the large ones beside measurements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slimgrad.lab.arms import Setup
from slimgrad.lab.predictions import ARMS, SETUPS, compare, predict_arm

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "swap, uncoded"])
def test_predicted_and_measured_agree(arm, monkeypatch):
    """But for uncoded swapping: how many bytes wait for the disk depends on its speed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    row = compare(Setup("tiny_nets:cnn", batch=16, threads=1), arm)
    assert abs(row.error) < 0.1
    assert abs(row.error_beyond_static) < 0.15


def test_large_batches_take_seconds_and_no_memory():
    prediction = predict_arm(Setup("resnet50", batch=256), "plain")
    assert 20 < prediction.held / 2**30 < 21.5
    assert prediction.seconds < 60


def test_the_bench_covers_the_five_families():
    assert {setup.model for setup in SETUPS} == {"resnet18", "resnet50", "vgg16", "unet2d", "gpt"}
    arguments = [sys.executable, str(ROOT / "bench" / "prediction.py"), "--help"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
    assert "--json" in subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout
