"""The first thing that a page shows: memory over one training step, one area per way of training, each peak in words.

Forward takes the left half and backward the right one in every curve, however many operators either has, so that curves
of different ways lie over each other. It is drawn twice, wide and for a phone; the style sheet shows one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from slimgrad.report.charts import N_COLOURS, figure, legend, scale, ticks
from slimgrad.report.table import nbytes

UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}
CAPTION = "live tensors beyond what is there before the step"
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 26, 28
NEAR = 18  # units of the picture: labels that would come closer than this in height are moved apart


class Curve(NamedTuple):
    """Bytes after every operator of one step; `forward` is the share of the operators that belong to forward."""

    name: str
    samples: Sequence[int]
    forward: float
    colour: int = 0


class Form(NamedTuple):
    """Size and style class of one drawing."""

    width: int
    height: int
    style: str


WIDE, NARROW = Form(1080, 330, "wide"), Form(420, 280, "narrow")


def draw(curves: Sequence[Curve]) -> str:
    """Return the figure; empty without curves."""
    shown = [curve for curve in curves if curve.samples]
    if not shown:
        return ""
    key = legend([(curve.name, curve.colour, False) for curve in shown])
    return figure(CAPTION, f"{_svg(shown, WIDE)}{_svg(shown, NARROW)}{key}")


def places(curve: Curve) -> list[float]:
    """Return where the samples lie between 0 and 1: forward in the first half, backward in the second."""
    last = max(1, len(curve.samples) - 1)
    split = min(max(curve.forward, 1e-6), 1 - 1e-6)
    shares = [i / last for i in range(len(curve.samples))]
    return [0.5 * x / split if x <= split else 0.5 + 0.5 * (x - split) / (1 - split) for x in shares]


def _svg(curves: Sequence[Curve], form: Form) -> str:
    peak = max(max(curve.samples) for curve in curves)
    unit = next((name for name, size in UNITS.items() if peak >= size), "KiB")
    levels = ticks(0.0, peak / UNITS[unit], 4)
    x_of = scale(0.0, 1.0, LEFT, form.width - RIGHT)
    y_of = scale(0.0, levels[-1] * UNITS[unit], form.height - BOTTOM, TOP)
    parts = [_frame(levels, unit, x_of, y_of, form)]
    labels: list[float] = []  # heights that are taken
    for curve in sorted(curves, key=lambda one: -max(one.samples)):
        parts.append(_area(curve, x_of, y_of))
        parts.append(_peak(curve, x_of, y_of, form, labels))
    words = ", ".join(f"{curve.name} {nbytes(max(curve.samples))}" for curve in curves)
    size = f'class="{form.style}" viewBox="0 0 {form.width} {form.height}"'
    return f'<svg {size} role="img" aria-label="peaks: {escape(words)}">{"".join(parts)}</svg>'


def _frame(levels: Sequence[float], unit: str, x_of, y_of, form: Form) -> str:
    parts = []
    for level in levels:
        y, text = y_of(level * UNITS[unit]), f"{level:g} {unit}" if level == levels[-1] else f"{level:g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{form.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    middle, bottom = x_of(0.5), form.height - BOTTOM
    parts.append(f'<line class="rule" x1="{middle:.1f}" x2="{middle:.1f}" y1="{TOP}" y2="{bottom}"/>')
    for place, word in ((0.25, "forward"), (0.75, "backward")):
        parts.append(f'<text x="{x_of(place):.1f}" y="{form.height - 8}" text-anchor="middle">{word}</text>')
    return "".join(parts)


def _area(curve: Curve, x_of, y_of) -> str:
    xs = places(curve)
    points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, curve.samples, strict=True))
    floor = f"{x_of(xs[-1]):.1f},{y_of(0):.1f} {x_of(xs[0]):.1f},{y_of(0):.1f}"
    number = curve.colour % N_COLOURS
    return (
        f'<polygon class="f{number}" points="{points} {floor}"></polygon>'
        f'<polyline class="k{number}" points="{points}"><title>{escape(curve.name)}</title></polyline>'
    )


def _peak(curve: Curve, x_of, y_of, form: Form, taken: list[float]) -> str:
    """Return a dot at the highest sample and its size in words, beside the dot where there is room."""
    highest = max(range(len(curve.samples)), key=lambda i: curve.samples[i])
    x, y = x_of(places(curve)[highest]), y_of(curve.samples[highest])
    height = y - 9
    while any(abs(height - other) < NEAR for other in taken):
        height += NEAR  # down, where there is always room
    taken.append(height)
    side = "start" if x < form.width * 0.3 else "end" if x > form.width * 0.7 else "middle"
    number = curve.colour % N_COLOURS
    words = f"{curve.name}: {nbytes(curve.samples[highest])}"
    return (
        f'<circle class="k{number}" cx="{x:.1f}" cy="{y:.1f}" r="4"></circle>'
        f'<text class="peak" x="{x:.1f}" y="{height:.1f}" text-anchor="{side}">{escape(words)}</text>'
    )
