"""The published systems: each trains, keeps what its paper keeps, and says what is not as in the paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import slimgrad
from slimgrad import ConfigError
from slimgrad.lab import checkpoint
from slimgrad.lab.recipe import Recipe, arm_word
from slimgrad.lab.run import Run
from slimgrad.lab.systems import SYSTEMS, BesideCompute, comet_warm_up, system_of
from slimgrad.lab.train import CHECKPOINT, Interrupted, train
from slimgrad.ledger import ratio

TINY = Recipe("tiny_nets:cnn", "random", size=32, steps=20, batch=4)


def trained(name: str, steps: int) -> dict[str, tuple[set[str], float]]:
    """Return codecs and ratio by role, of the last step of a short run."""
    run = Run(replace(TINY.for_arm(f"system:{name}"), steps=20).filled())
    try:
        while run.done < steps:
            run.step()
        run.session.progress.begin_forward()
        report = run.session.report()
        last = report.snapshot.last.coded
        return {role: (set(c.codecs), ratio(c.nbytes_in, c.nbytes_out)) for (_, role), c in last.items()}
    finally:
        run.close()


def test_comet_warms_up_and_then_codes_what_convolutions_read_and_produce() -> None:
    assert (comet_warm_up(20), comet_warm_up(10**6), comet_warm_up(3)) == (2, 1000, 1)
    assert system_of("comet").bound(5000) == slimgrad.Comet(warmup=500, layers=("conv", "norm"))
    assert "nested" not in trained("comet", 2).get("batch norm input", ({}, 0))[0]
    coded = trained("comet", 8)
    for role in ("conv input", "batch norm input"):
        assert "nested" in coded[role][0] and coded[role][1] > 3, role


def test_acgc_has_its_own_quantiser() -> None:
    assert trained("acgc", 4)["conv input"][0] & {"acgc", "mask+acgc"}


def test_cdma_leaves_out_zeros_and_nothing_else() -> None:
    coded = trained("cdma", 3)
    assert coded["conv input"][0] == {"zvc"}
    assert "batch norm input" not in coded


@pytest.mark.parametrize("min_bytes", [0, 1 << 30])
def test_freelunch_codes_convolutions_beside_compute_and_swaps_the_rest(min_bytes: int) -> None:
    policy = BesideCompute(slimgrad.Swap("disk", compress=False, min_bytes=min_bytes))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
    with slimgrad.attach(model, bound=system_of("freelunch").bound(1), policy=policy) as session:
        for _ in range(3):
            model(torch.randn(4, 3, 40, 40)).sum().backward()
        session.progress.begin_forward()
        last = session.report().snapshot.last.coded
    codecs = {key: set(coded.codecs) for key, coded in last.items()}
    assert "nested" in codecs["1", "conv input"], "the ReLU's result, read by the second convolution"
    assert "nested" in codecs["4", "conv input"]
    assert codecs.get(("3", "batch norm input")) == (None if min_bytes else {"raw"})


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_named_and_has_a_note_of_one_line(name: str) -> None:
    system = system_of(name)
    assert system.note and "\n" not in system.note
    recipe = TINY.for_arm(f"system:{name}")
    assert arm_word(recipe.to_dict()) == recipe.arm_word == f"system:{name}"
    assert str(recipe) == f"tiny_nets:cnn on random, system:{name}, seed 0"


def test_an_unknown_system_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="comet, acgc, freelunch, cdma, got 'magic'"):
        TINY.for_arm("system:magic")


def test_a_system_that_grows_its_batch_is_resumed_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimgrad.lab.run.n_batches", lambda *_: 4)
    recipe = replace(TINY.for_arm("system:comet"), test_every=5, audits=2, threads=torch.get_num_threads())
    train(recipe, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "parts", until=6)
    train(recipe, tmp_path / "parts", resume=True)
    whole, parts = (checkpoint.load(tmp_path / name / CHECKPOINT) for name in ("whole", "parts"))
    assert all(torch.equal(whole["model"][key], parts["model"][key]) for key in whole["model"])
    for run in (whole, parts):
        assert [one["step"] for one in run["history"]["test"]] == [6, 10, 18, 20], (
            "the first step at or after every 5th"
        )
