"""The accuracy benchmark: which nets, arms and seeds, in which order, and the table of what has finished.

    planned(["resnet18"])            the runs by name, those first that make the table useful early
    markdown(results)                a table per net, with differences to plain and their 95 % intervals

Networks are reduced so that two cores can train them. ResNet-18 comes first, all arms of a seed before the next seed;
then the others, seed by seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slimgrad.errors import ConfigError
from slimgrad.lab import compare_table, words
from slimgrad.lab.compare import COMET, COMET_NOTE, COMET_ROW, Row, rows_of
from slimgrad.lab.recipe import Recipe

BASE = Recipe("resnet18", "cifar10", epochs=7, batch=64, test_every=781, audits=12, threads=1, channels_last=True)
NETS = {
    "resnet18": replace(BASE, options={"width": 0.25}),
    "vgg16_bn": replace(BASE, model="vgg16_bn", options={"width": 0.25, "dropout": 0.0}, lr=0.05),
    "alexnet": replace(BASE, model="alexnet", options={"width": 0.5}),
    "resnet50": replace(BASE, model="resnet50", options={"width": 0.125}),
    "gpt": Recipe(
        "gpt", "sotu", size=128, steps=4000, batch=16, lr=2e-3, audits=8, threads=1,
        test_every=1000, test_examples=2048, options={"width": 64, "depth": 3, "heads": 4, "dropout": 0.0},
    ),
}  # fmt: skip
FIRST = "resnet18"
THREE = {"plain": 3, "noise:0.05": 3, "comet": 3}
N_SEEDS: dict[str, dict[str, int]] = {  # by net and arm
    FIRST: {"plain": 8, "noise:0.05": 8, "noise:0.2": 3, "comet": 3, "acgc": 3},
    "vgg16_bn": THREE,
    "alexnet": THREE,
    "resnet50": THREE,
    "gpt": {"plain": 3, "noise:0.05": 3},  # COMET has nothing to say of a net without convolutions
}
ALLOWED = 0.005  # of accuracy: what may be lost at the lower end of the interval
PUBLISHED = {"resnet18": "ResNet-18", "vgg16_bn": "VGG-16", "alexnet": "AlexNet", "resnet50": "ResNet-50"}


def planned(
    nets: Sequence[str], arms: Sequence[str] | None = None, seeds: Sequence[int] | None = None, steps: int = 0
) -> dict[str, Recipe]:
    """Return the runs by name in their order; `arms` and `seeds` replace those of the benchmark."""
    for net in nets:
        if net not in NETS:
            raise ConfigError(f"expected nets among {', '.join(NETS)}, got {net!r}")
    groups = [[net for net in nets if net == FIRST], [net for net in nets if net != FIRST]]
    recipes: dict[str, Recipe] = {}
    for group in groups:
        most = max((max(N_SEEDS[net].values()) for net in group), default=0)
        for seed in range(most) if seeds is None else seeds:
            for net in group:
                for arm in _arms(net, seed, arms, seeds is None):
                    recipe = replace(NETS[net], seed=seed, steps=steps or NETS[net].steps)
                    recipes[f"{net}-{arm.replace(':', '_')}-seed{seed}"] = recipe.for_arm(arm)
    return recipes


def _arms(net: str, seed: int, wanted: Sequence[str] | None, is_limited: bool) -> list[str]:
    arms = list(N_SEEDS[net] if wanted is None else wanted)
    return [arm for arm in arms if not is_limited or seed < N_SEEDS[net].get(arm, 3)]


def net_of(result: Mapping[str, Any]) -> str:
    """Return the net of a result."""
    return result["recipe"]["model"]


def markdown(results: Iterable[Mapping[str, Any]]) -> str:
    """Return the tables of what has finished, net by net."""
    groups: dict[str, list[Mapping[str, Any]]] = {net: [] for net in NETS}
    for result in results:
        groups[net_of(result)].append(result)
    parts = [_net(net, group) for net, group in groups.items() if group]
    notes = [compare_table.LEGEND, COMET_NOTE]
    return "\n\n".join(["# Accuracy", HEAD, *parts, *notes]) + "\n"


HEAD = (
    "Written by `python bench/accuracy.py --table` from the runs in `docs/results/accuracy`; `bench/accuracy.py` adds "
    "those that are missing. The same seeds in all arms: equal first weights and equal batches. Differences are taken "
    "seed by seed, with 95 % intervals by Student's distribution. Reduced networks, one thread a run; nothing here is "
    "ImageNet. Runs were made at different times, beside other work and on more than one machine, so steps and times "
    "do not compare: `bench/step.py` is for that."
)


def _machines(results: Sequence[Mapping[str, Any]]) -> str:
    words = [
        f"torch {one['torch']}, {one['processor']}, kernels {one['kernels']}"
        for one in (result["machine"] for result in results)
    ]
    return "; ".join(f"{words.count(one)} runs on {one}" for one in dict.fromkeys(words))


def _net(net: str, results: Sequence[Mapping[str, Any]]) -> str:
    recipe, rows = results[0]["recipe"], rows_of(results)
    options = ", ".join(f"{key} {value}" for key, value in NETS[net].options.items())
    steps = f"{recipe['steps']} steps of {recipe['batch']}"
    head = f"## {net} on {recipe['data']}\n\n{options}; {steps}; {_machines(results)}."
    headings = (*compare_table.COSTS, *compare_table.learnt(rows)[1:])
    lines = [headings, ["---"] * len(headings)]
    lines += [(*compare_table.cost_cells(row), *compare_table.learnt_cells(row)[1:]) for row in rows]
    if net in PUBLISHED:
        name = PUBLISHED[net]
        published = [f"{COMET_ROW}: {name}, conv inputs only, ImageNet"] + ["-"] * (len(headings) - 1)
        published[compare_table.COSTS.index("saved")] = f"{COMET[name]}x"
        lines.append(published)
    notes = [note for note in (compare_table.pages_note(rows), _budget_note(rows)) if note]
    below = [line for note in notes for line in ("", note)]
    return "\n".join([head, "", *(f"| {' | '.join(line)} |" for line in lines), *below])


def _budget_note(rows: Sequence[Row]) -> str:
    """Return which of several budgets of Noise is the largest that costs next to no accuracy."""
    noises = [row for row in rows if row.arm.partition(":")[0] == "noise"]
    budgets = {words.bound_of(row.arm).e2: row.accuracy_difference for row in noises}
    if len(budgets) < 2 or rows[0].is_text:
        return ""
    kept = [e2 for e2, found in budgets.items() if found and found.low is not None and found.low > -ALLOWED]
    answer = f"{max(kept):g}" if kept else "none"
    tried = ", ".join(f"{e2:g}" for e2 in sorted(budgets))
    return f"The largest e2 (of {tried}) with the lower end of the interval above {-100 * ALLOWED:g} points: {answer}."
