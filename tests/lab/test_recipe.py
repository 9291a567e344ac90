"""Recipes: defaults, checks, what a resumed run must share with its checkpoint."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from slimgrad import ConfigError
from slimgrad.lab.recipe import ADAMW, SGD, Recipe, read_result

TINY = Recipe("tiny_nets:cnn", "random", size=16, steps=8, batch=4)


def test_defaults_are_written_out() -> None:
    filled = Recipe("resnet18", "fashion-mnist", options={"width": 0.25}, epochs=2).filled()
    assert filled.options == {"classes": 10, "in_channels": 1, "stem": "small", "width": 0.25}
    assert (filled.batch, filled.steps, filled.test_every) == (128, 78, 8)
    assert (filled.optimizer, filled.lr, filled.weight_decay) == (SGD, 0.1, 5e-4)
    assert filled.filled() == filled


def test_a_transformer_gets_its_own_optimiser() -> None:
    filled = Recipe("vit", "fashion-mnist").filled()
    assert filled.optimizer == ADAMW
    assert filled.options["patch"] == 4


def test_the_rate_rises_in_a_line_and_falls_to_zero() -> None:
    rates = [replace(TINY, steps=100).rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert max(rates) == rates[10] == 1.0
    assert rates[100] == pytest.approx(0.0, abs=1e-9)
    assert all(a >= b for a, b in pairwise(rates[10:]))


def test_norms_and_biases_do_not_decay() -> None:
    filled = TINY.filled()
    groups = filled.build_optimizer(filled.build_model()).param_groups
    assert [group["weight_decay"] for group in groups] == [5e-4, 0.0]
    assert all(p.dim() > 1 for p in groups[0]["params"])
    assert all(p.dim() == 1 for p in groups[1]["params"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "resnet19"}, "resnet18.*got 'resnet19'"),
        ({"data": "imagenet"}, "cifar10.*got 'imagenet'"),
        ({"arm": "slimmer"}, "plain, slim, checkpoint, got 'slimmer'"),
        ({"bound": "tight"}, "noise:SHARE.*got 'tight'"),
        ({"policy": "squash"}, "compress:CODEC.*got 'squash'"),
        ({"optimizer": "lion"}, "sgd or adamw, got 'lion'"),
        ({"batch": -1}, "batch of 0 or more, got -1"),
        ({"epochs": float("inf")}, "finite epochs of 0 or more, got inf"),
        ({"lr": float("nan")}, "finite lr of 0 or more, got nan"),
        ({"seed": 1 << 70}, "seed between"),
        ({"model": "unet2d", "data": "fashion-mnist"}, "a target per pixel for unet2d.*--data random"),
        ({"model": "resnet18", "options": {"width": -3}}, "width above 0 for resnet18, got --set width=-3"),
        ({"model": "resnet18", "options": {"classes": 5}}, "classes=10 or more of resnet18 .*got 5"),
        ({"model": "resnet18", "options": {"in_channels": 1}}, "in_channels=3 of resnet18 .*got 1"),
    ],
)
def test_what_is_unknown_says_what_is_known(change: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **change).filled()


def test_an_option_that_the_model_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match="depth=3"):
        replace(TINY, options={"depth": 3}).build_model()
    with pytest.raises(ConfigError, match=r"a model from resnet18 with depth=34, got KeyError: 34"):
        replace(TINY, model="resnet18", options={"depth": 34}).build_model()


def test_a_recipe_survives_the_way_through_a_file() -> None:
    filled = Recipe("resnet18", "fashion-mnist", options={"width": 0.25}).filled()
    assert Recipe(**json.loads(json.dumps(filled.to_dict()))) == filled


def test_what_was_left_open_counts_as_what_it_was_filled_with() -> None:
    asked = Recipe("resnet18", "fashion-mnist", options={"width": 0.25}, threads=1)
    done = asked.filled().to_dict()
    assert asked.filled().differs_from(done) == []
    assert replace(asked, threads=2).filled().differs_from(done) == ["threads"]  # other rounding, other times
    assert replace(asked, lr=0.3, seed=1).filled().differs_from(done) == ["seed", "lr"]
    assert replace(asked, options={"width": 0.5}).filled().differs_from(done) == ["options"]
    assert replace(asked, options={}).filled().differs_from(done) == ["options"]
    tried = replace(asked, steps=1, batch=16, lr=0.001).filled().to_dict()
    assert asked.filled().differs_from(tried) == ["steps", "batch", "lr", "test_every"]


def test_what_only_slim_reads_does_not_tell_plain_runs_apart() -> None:
    done = Recipe("resnet18", "fashion-mnist", arm="plain").filled()
    other = replace(done, bound="noise:0.1", policy="recompute", audits=3)
    assert other.differs_from(done.to_dict()) == []
    assert replace(other, arm="slim").differs_from({**done.to_dict(), "arm": "slim"}) == ["bound", "policy", "audits"]
    assert "bound" in replace(other, arm="slim").differs_from(done.to_dict())


def test_passes_over_the_data_count_as_the_steps_that_they_are() -> None:
    done = Recipe("resnet18", "fashion-mnist", epochs=2).filled()
    assert replace(done, epochs=1.0).differs_from(done.to_dict()) == []


def test_a_field_that_is_newer_than_a_result_had_its_default() -> None:
    older = {key: value for key, value in TINY.filled().to_dict().items() if key not in ("system", "most_batch")}
    assert TINY.filled().differs_from(older) == []
    assert "system" in TINY.for_arm("system:comet").filled().differs_from(older)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"recipe": 3}', "\x00"])
def test_a_result_that_is_none_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=r"expected .*a\.json to be the result of a run, got .*; remove it"):
        read_result(tmp_path / "a.json")
