"""Draws what bench/noise.py has found: expected against measured noise, and both through the trainings.

    python bench/noise_plots.py [--results docs/results]

Reads noise_<model>_<e2>.json, writes noise_expected.svg and noise_training.svg beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.lines import Line2D

COLOURS = {0.01: "#4477aa", 0.05: "#228833", 0.2: "#cc6677"}
MARKERS = {
    "resnet18_cifar": "P",
    "vgg16_bn_cifar": "X",
    "mobilenet_cifar": "v",
    "resnet18": "o",
    "vgg16_bn": "s",
    "mobilenet": "^",
    "gpt": "D",
}
LEFT_OUT = 2  # audits, as in bench/noise.py


def expected_against_measured(runs: list[dict[str, Any]], path: Path) -> None:
    """One point per audit; on the diagonal the two agree."""
    figure, axes = plt.subplots(figsize=(5.5, 5))
    for run in runs:
        audits = run["audits"][LEFT_OUT:]
        expected, measured = [a["expected"] for a in audits], [a["noise"] for a in audits]
        style = {"marker": MARKERS[run["model"]], "color": COLOURS[run["e2"]], "alpha": 0.7, "s": 22}
        axes.scatter(expected, measured, **style)
    ends = (1e-4, 0.5)
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(ends, [x / 2 for x in ends], [x * 2 for x in ends], color="black", alpha=0.06, linewidth=0)
    for e2, colour in COLOURS.items():
        axes.axhline(e2, color=colour, linewidth=0.8, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="expected noise", ylabel="noise in the audit")
    shapes = [Line2D([], [], marker=m, color="grey", linestyle="", label=name) for name, m in MARKERS.items()]
    budgets = [Line2D([], [], color=c, linestyle="--", label=f"e2 = {e2:g}") for e2, c in COLOURS.items()]
    axes.legend(handles=shapes + budgets, fontsize=8, loc="upper left")
    axes.set_title("one audit each; grey: within a factor of two", fontsize=10)
    save(figure, path)


def through_training(runs: list[dict[str, Any]], path: Path) -> None:
    """Noise / e2 above, the most in a layer / 4 e2 below, one column per network."""
    names = [name for name in MARKERS if any(run["model"] == name for run in runs)]
    figure, rows = plt.subplots(2, len(names), figsize=(3 * len(names), 5), sharex="col", sharey="row", squeeze=False)
    for column, name in enumerate(names):
        for run in (run for run in runs if run["model"] == name):
            e2, audits = run["e2"], run["audits"]
            steps, colour = [a["step"] for a in audits], COLOURS[run["e2"]]
            rows[0][column].plot(steps, [a["noise"] / e2 for a in audits], color=colour, marker=".", label=f"{e2:g}")
            rows[0][column].plot(steps, [a["expected"] / e2 for a in audits], color=colour, linestyle=":")
            rows[1][column].plot(steps, [a["worst"] / (4 * e2) for a in audits], color=colour, marker=".")
        rows[0][column].set_title(name)
        rows[0][column].axhline(1.5, color="black", linewidth=0.8)
        rows[0][column].axhspan(0.5, 1.0, color="black", alpha=0.06)
        rows[1][column].axhline(1.0, color="black", linewidth=0.8)
        rows[1][column].set(xlabel="step", yscale="log")
    rows[0][0].set(ylabel="noise / e2 (dotted: expected)")
    rows[1][0].set(ylabel="most in a layer / 4 e2")
    rows[0][-1].legend(title="e2", fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws what bench/noise.py has found.")
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    folder = parser.parse_args().results
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("noise_*.json"))]
    plt.rcParams["svg.hashsalt"] = "slimgrad"  # the same drawing from the same figures
    expected_against_measured(runs, folder / "noise_expected.svg")
    through_training(runs, folder / "noise_training.svg")


if __name__ == "__main__":
    main()
