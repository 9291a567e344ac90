"""How few bytes could any choice of bounds store at a given gradient noise? The optimum for one recorded step.

    python bench/optimum.py [--steps 60] [--batch 32] [--json docs/results/optimum.json]

Every tensor of a recorded step of a small ResNet-18 is coded alone at a few bounds, and the step run again: bytes and
noise, in all and by layer. The noises of tensors add up (docs/bounds.md), so the best choice follows from that table by
prices, for the budget and for each limit per layer. Beside it, at one bound: what steps per channel change, and what
subtractive dither would, computed in floating point since no code has it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from published import SETS, TARGETS, Setup

from slimgrad import Relative, codecs
from slimgrad.bounds.base import NEGLIGIBLE
from slimgrad.codecs import Nested
from slimgrad.lab import machine
from slimgrad.lab.replay import Recorded, Step, replay
from slimgrad.lab.samples import rms_of_nonzero

RELS = 2.0 ** np.array((-5.0, -3.0, -2.0, -1.0, 0.0))
FINE = np.linspace(-5.0, 0.0, 81)  # logarithms of the bounds among which is chosen
ATS = (0.5, 0.25, 0.125)  # bounds at which other codes are tried
N_PRICES = 800
NEAR = 1.3  # x the limits: from where a choice is worth mending


class Curves(NamedTuple):
    """Of one tensor, at each of the FINE bounds."""

    word: str
    nbytes: np.ndarray
    noise: np.ndarray
    layers: np.ndarray  # one row per layer: shares of its own gradient


def coded(recorded: Recorded, rel: float, axis: int | None, centred: bool) -> tuple[int, torch.Tensor]:
    blob = codecs.encode(recorded.tensor, Nested(centred=centred), Relative(rel), axis)
    signs = recorded.tensor.numel() // 8 if recorded.is_signed_for and centred else 0
    return blob.nbytes + signs, codecs.decode(blob)


def dithered(x: torch.Tensor, rel: float) -> torch.Tensor:
    """Return what a code with subtractive dither would restore; zeros and signs stay exact."""
    step = 2.0 * rel * rms_of_nonzero(x)
    restored = (torch.floor((x.abs() + (shift := _shifts(x) * step)) / step + 0.5) * step - shift).clamp_min(0.0)
    return torch.where(x == 0, 0.0, x.sign() * restored)


def dithered_channels(x: torch.Tensor, rel: float) -> torch.Tensor:
    """Return the same of a norm's input, whose steps are each channel's own and whose signs nobody needs."""
    dims = [dim for dim in range(x.dim()) if dim != 1]
    deviation, mean = torch.std_mean(x, dims, keepdim=True)
    step = 2.0 * rel * deviation
    shift = _shifts(x) * step
    return torch.where(step > 0, torch.round((x - mean + shift) / step) * step - shift + mean, x)


def _shifts(x: torch.Tensor) -> torch.Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 0.5


def curves(step: Step, recorded: Recorded, energies: dict[str, float]) -> Curves:
    is_norm = recorded.word == "norm"
    sizes, shares = [], []
    for rel in RELS:
        size, restored = coded(recorded, float(rel), 1 if is_norm else None, is_norm)
        errors = replay(step, {recorded.site: restored}).layers
        sizes.append(size)
        shares.append([max(errors[layer], 1e-30) for layer in energies])
    energy, errors2 = np.array(list(energies.values())), np.array(shares).T
    noise = _between(np.log(errors2.sum(axis=0) / energy.sum()))
    layers = np.stack([_between(np.log(row / own)) for row, own in zip(errors2, energy, strict=True)])
    return Curves(recorded.word, _between(np.array(sizes)), np.exp(noise), np.exp(layers))


def _between(values: np.ndarray) -> np.ndarray:
    return np.interp(FINE, np.log2(RELS), values)


def best(nbytes: np.ndarray, noises: np.ndarray, limits: np.ndarray) -> float:
    """Return the fewest bytes for which noises (limits x tensors x bounds) stay within limits."""
    rows, prices, fewest = np.arange(len(nbytes)), np.full(len(limits), 1e-3 * nbytes.max()), math.inf
    shares = noises / limits[:, None, None]
    for number in range(N_PRICES):
        chosen = np.argmin(nbytes + np.tensordot(prices / limits, noises, 1), axis=1)
        loads = shares[:, rows, chosen].sum(axis=1)
        if loads.max() <= NEAR:
            chosen = within(chosen, shares)
            fewest = min(fewest, float(nbytes[rows, chosen].sum()))
        prices = np.maximum(1e-9, prices * np.clip(loads, 0.1, 10.0) ** (0.5 / (1 + number / 50)))
    return fewest


def within(chosen: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the choice with finer bounds where a limit is exceeded: of whoever adds the most, one after the other."""
    chosen, rows = chosen.copy(), np.arange(len(chosen))
    while (loads := (own := shares[:, rows, chosen]).sum(axis=1)).max() > 1.0:
        chosen[np.argmax(np.where(chosen > 0, own[np.argmax(loads)], -1.0))] -= 1
    return chosen


def allocations(table: list[Curves], counted: np.ndarray) -> list[dict[str, Any]]:
    """Return bytes of the best choice / bytes of the best single relative bound, with several limits per layer."""
    rows = []
    for name, words in SETS.items():
        chosen = [one for one in table if one.word in words]
        nbytes, noise = (np.stack([getattr(one, field) for one in chosen]) for field in ("nbytes", "noise"))
        layers = np.stack([one.layers[counted] for one in chosen]).transpose(1, 0, 2)
        for target in TARGETS:
            single = np.interp(math.log(target), np.log(noise.sum(axis=0)), nbytes.sum(axis=0))
            row: dict[str, Any] = {"tensors": name, "noise": target}
            for cap in (math.inf, 4.0):
                limits = np.array([target, *[min(cap, 1e6) * target] * len(layers)])
                row[f"cap {cap:g} e2"] = best(nbytes, np.concatenate([noise[None], layers]), limits) / single
            rows.append(row)
    return rows


def other_codes(step: Step, at: float) -> dict[str, dict[str, float]]:
    """Return noise and bytes at one bound / those of the code that is used: of steps per channel, and of dither."""
    found: dict[str, list[float]] = {"channels: noise": [], "channels: bytes": [], "dither: noise": []}
    found["dither of norms: noise"] = []
    for recorded in step.tensors:
        if recorded.word not in ("conv", "norm"):
            continue
        is_norm = recorded.word == "norm"
        size, restored = coded(recorded, at, 1 if is_norm else None, is_norm)
        noise = replay(step, {recorded.site: restored}).noise
        if is_norm:
            dither = dithered_channels(recorded.tensor, at)
            found["dither of norms: noise"].append(replay(step, {recorded.site: dither}).noise / noise)
            continue
        channel_size, by_channel = coded(recorded, at, 1, False)
        channel_noise, dither_noise = (
            replay(step, {recorded.site: tensor}).noise for tensor in (by_channel, dithered(recorded.tensor, at))
        )
        found["channels: noise"].append(channel_noise / noise)
        found["channels: bytes"].append(channel_size / size)
        found["dither: noise"].append(dither_noise / noise)
    return {name: _spread(values) for name, values in found.items()}


def _spread(values: list[float]) -> dict[str, float]:
    quarter, median, three_quarters = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {
        "median": median, "quarter": quarter, "three quarters": three_quarters,
        "smallest": min(values), "median of the first five": float(np.median(values[:5])),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The fewest bytes at a given gradient noise, for one recorded step.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    setup = Setup("resnet18", options.steps, options.batch)
    step = setup.recorded()
    energies = step.layers
    counted = np.array(list(energies.values())) > NEGLIGIBLE * step.energy
    found = {"other codes": {f"{at:g}": other_codes(step, at) for at in ATS}}
    for at, name, spread in (
        (at, name, spread) for at, one in found["other codes"].items() for name, spread in one.items()
    ):
        print(f"rel {at}, {name}:", ", ".join(f"{word} {value:.2f}" for word, value in spread.items()), flush=True)
    rows = allocations([curves(step, recorded, energies) for recorded in step.tensors], counted)
    print("\n".join(str(row) for row in rows))
    if options.json:
        record = {"machine": machine.describe(), "setup": setup._asdict(), **found, "allocations": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
