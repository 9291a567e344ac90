"""The accuracy benchmark: its runs, their order, its table."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_results import result

from slimgrad import ConfigError
from slimgrad.lab import benchmark
from slimgrad.lab.benchmark import NETS, markdown, planned

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "accuracy"


def test_all_arms_of_a_seed_come_before_the_next_and_resnet18_before_the_others() -> None:
    names = list(planned(list(NETS)))
    assert names[:5] == [f"resnet18-{arm}-seed0" for arm in ("plain", "noise_0.05", "noise_0.2", "comet", "acgc")]
    assert sum(name.startswith("resnet18-plain") for name in names) == 8
    assert sum(name.startswith("resnet18-acgc") for name in names) == 3
    last = max(i for i, name in enumerate(names) if name.startswith("resnet18"))
    assert not any(name.startswith("resnet18") for name in names[last + 1 :])
    others = [name for name in names[last + 1 :] if name.endswith("seed0")]
    assert names[last + 1 : last + 1 + len(others)] == others
    assert len(names) == len(set(names)) == 8 + 8 + 3 * 3 + 3 * 9 + 6


def test_arms_and_seeds_can_be_chosen() -> None:
    recipes = planned(["gpt"], ["plain", "exact"], [5], steps=7)
    assert list(recipes) == ["gpt-plain-seed5", "gpt-exact-seed5"]
    assert [(one.seed, one.steps, one.arm_word) for one in recipes.values()] == [(5, 7, "plain"), (5, 7, "exact")]
    with pytest.raises(ConfigError, match="resnet18, vgg16_bn, alexnet, resnet50, gpt, got 'lenet'"):
        planned(["lenet"])


@pytest.mark.parametrize("net", NETS)
def test_every_recipe_of_the_benchmark_is_one(net: str) -> None:
    recipe = NETS[net]
    recipe._check()
    assert recipe.threads == 1


def test_results_that_are_there_count_as_finished() -> None:
    """Data is not loaded here: steps and the options that fit a net to its data are those of the results."""
    recipes = planned(list(NETS))
    paths = [path for path in RESULTS.glob("*-seed*.json") if path.stem in recipes]
    found = {path.stem: json.loads(path.read_text())["recipe"] for path in paths}
    for name, done in found.items():
        source = SimpleNamespace(
            unit="tokens" if done["model"] == "gpt" else "images",
            shape=(done["options"]["context"],) if done["model"] == "gpt" else (3, 32, 32),
            classes=done["options"]["classes"],
            n_train=50_000,
        )
        assert recipes[name].filled(source).differs_from(done) == [], name
    assert found


def test_the_table_has_differences_and_the_published_row_of_the_same_net() -> None:
    results = [result("plain", s, 0.5 + 0.1 * s) for s in range(3)] + [
        result("noise:0.05", s, 0.49 + 0.1 * s) for s in range(3)
    ]
    text = markdown(results)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    slim = next(line for line in lines if line[0] == "noise:0.05")
    assert "-1.00 pt [-1.00, -1.00]" in slim
    published = lines[-1]
    assert published[lines[0].index("saved")] == "10.7x"
    assert "ImageNet" in published[0]
    assert "## resnet18 on cifar10" in text and "## gpt" not in text
    assert benchmark.HEAD in text
    assert "largest e2" not in text  # of one there is none


@pytest.mark.parametrize(
    ("losses", "answer"), [((0.001, 0.02), "0.05"), ((0.001, 0.002), "0.2"), ((0.01, 0.02), "none")]
)
def test_the_largest_budget_that_costs_next_to_nothing_is_named(losses: tuple[float, float], answer: str) -> None:
    results = [result("plain", seed, 0.5) for seed in range(3)]
    for arm, lost in zip(("noise:0.05", "noise:0.2"), losses, strict=True):
        results += [result(arm, seed, 0.5 - lost) for seed in range(3)]
    note = "The largest e2 (of 0.05, 0.2) with the lower end of the interval above -0.5 points: "
    assert f"{note}{answer}." in markdown(results)
