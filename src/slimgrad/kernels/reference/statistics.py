"""Sums over a tensor's values, and the per-channel steps that follow from them, in plain torch.

The compiled twins are in csrc/nested.cpp and csrc/scales.cpp. Sums may differ in the last bits (another order of adding);
what is derived from them is rounded to few bits before it decides anything.
"""

from __future__ import annotations

import torch

from slimgrad.kernels.reference.nested import ieee_floats

# what rounding to the tensor's dtype costs: relative (half a unit in the last place), and absolute among subnormals
ROUNDING = {torch.float32: (2.0**-24, 2.0**-150), torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-9, 2.0**-134)}
ARITHMETIC = 2.0**-22  # (x - centre) / scale and back in float32, relative to the largest value: four roundings
SMALLEST_EPS, LARGEST_EPS = 2.0**-100, 2.0**100  # beyond these, 1 / step and level * step leave float32's range
EXACT_STEP = 2.0**-126  # so small that only the centre itself is coded and every other value escapes
WELL_CONDITIONED = 1e-10  # below this share of the mean's square, the difference that gives the variance is noise


def moments(flat: torch.Tensor, count: int, inner: int, run: int, every: int) -> torch.Tensor:
    """Return float64 (count, 4): finite values, non-zeros, sum, sum of squares per channel, over runs of `run` values
    that start every `every` values."""
    with ieee_floats():
        at = torch.arange(0, flat.numel(), every).unsqueeze(1) + torch.arange(run)
        at = at.reshape(-1)
        at = at[at < flat.numel()]
        x = flat[at].to(torch.float32).to(torch.float64)
        finite = torch.isfinite(x)
        x = torch.where(finite, x, 0.0)
        sums = torch.zeros(count, 4, dtype=torch.float64)
        columns = torch.stack([finite.double(), ((x != 0) & finite).double(), x, x * x], dim=1)
        return sums.index_add_(0, at // inner % count, columns)


def channel_scales(
    sums: torch.Tensor, dtype: torch.dtype, is_centred: bool, rel: float, absolute: float, reach: int
) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Return (scale, centre, largest eps) per channel from the sums of `moments`, or None when float32 has no room for steps.

    eps is rel x RMS of the channel (about its mean if centred, else of its non-zeros) when rel > 0, else `absolute`, and
    at most two RMS. `reach` is how many steps from the centre are coded. The step is 2 x (eps - what rounding can cost);
    where rounding costs too much of it, the channel gets EXACT_STEP: its values escape and come back bit for bit.
    """
    count, nonzero, total, squares = sums.unbind(1)
    relative, subnormal = ROUNDING[dtype]
    if is_centred:
        mean = total / torch.clamp(count, min=1.0)
        mean_square = squares / torch.clamp(count, min=1.0)
        variance = torch.clamp(mean_square - mean * mean, min=0.0)
        is_noise = (variance < WELL_CONDITIONED * (mean * mean)) & (variance + mean * mean > 0)
    else:
        mean = torch.zeros_like(total)
        variance = squares / torch.clamp(nonzero, min=1.0)
        is_noise = torch.zeros_like(variance, dtype=torch.bool)
    rms = torch.sqrt(variance)
    eps = rel * rms if rel > 0 else torch.full_like(rms, absolute)
    centre = mean.to(torch.float32)
    is_flat = rms == 0.0  # nothing but the centre (or zeros) was seen
    eps = torch.where(is_flat, absolute, torch.minimum(eps, 2.0 * rms))
    if bool((~is_flat & ((eps < SMALLEST_EPS) | (eps > LARGEST_EPS))).any()):
        return None
    furthest = centre.double().abs() + (2.0 * reach) * eps
    slack = (relative + ARITHMETIC) * furthest + subnormal
    is_exact = is_noise | (slack > 0.25 * eps) | (eps < SMALLEST_EPS)
    step = torch.where(is_exact, EXACT_STEP, 2.0 * (eps - slack))
    scale = (step.to(torch.float32).view(torch.int32) & ~0xFFF).view(torch.float32)
    return scale, centre, float(torch.where(is_exact, 0.0, eps).max())
