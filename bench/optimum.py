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
AT = 0.5  # the bound at which other codes are tried
N_PRICES = 800


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
    shift = (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 0.5) * step
    restored = (torch.floor((x.abs() + shift) / step + 0.5) * step - shift).clamp_min(0.0)
    return torch.where(x == 0, 0.0, x.sign() * restored)


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
    for number in range(N_PRICES):
        chosen = np.argmin(nbytes + np.tensordot(prices / limits, noises, 1), axis=1)
        loads = noises[:, rows, chosen].sum(axis=1) / limits
        if loads.max() <= 1.02:
            fewest = min(fewest, float(nbytes[rows, chosen].sum()))
        prices = np.maximum(1e-9, prices * np.clip(loads, 0.1, 10.0) ** (0.5 / (1 + number / 50)))
    return fewest


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


def other_codes(step: Step) -> dict[str, float]:
    """Return medians over convolution inputs, at one bound, of noise and bytes / those of one step per tensor."""
    found: dict[str, list[float]] = {"channels: noise": [], "channels: bytes": [], "dither: noise": []}
    for recorded in step.tensors:
        if recorded.word == "conv":
            size, restored = coded(recorded, AT, None, False)
            channel_size, by_channel = coded(recorded, AT, 1, False)
            noise, channel_noise, dither_noise = (
                replay(step, {recorded.site: tensor}).noise
                for tensor in (restored, by_channel, dithered(recorded.tensor, AT))
            )
            found["channels: noise"].append(channel_noise / noise)
            found["channels: bytes"].append(channel_size / size)
            found["dither: noise"].append(dither_noise / noise)
    medians = {name: float(np.median(values)) for name, values in found.items()}
    return {**medians, "dither: noise, first five": float(np.median(found["dither: noise"][:5]))}


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
    found = {"other codes": other_codes(step)}
    print(found["other codes"], flush=True)
    rows = allocations([curves(step, recorded, energies) for recorded in step.tensors], counted)
    print("\n".join(str(row) for row in rows))
    if options.json:
        record = {"machine": machine.describe(), "setup": setup._asdict(), **found, "allocations": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
