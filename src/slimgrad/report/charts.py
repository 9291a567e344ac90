"""Charts as text: SVG and HTML that need no script, no font and no network, in the colours of page.py.

Every chart is a <figure> with a caption. Numbers that a picture shows are in it as titles, which readers see on hover
and programs can read.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 40
N_COLOURS = 6  # --c0 ... --c5 of the page; 0 is the neutral one, for what others are compared with
MOST_DOTS = 24  # points of a line that are marked one by one


class Series(NamedTuple):
    """One line; lines of one name share their colour and one entry of the legend."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_thin: bool = False
    is_dashed: bool = False


def lines(
    caption: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    y_text: Callable[[float], str] = lambda y: f"{y:g}",
    from_zero: bool = True,
    rule: tuple[float, str] | None = None,
) -> str:
    """Return lines over common axes; `rule` is a level with a name, drawn across."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [x for one in drawn for x, _ in one.points]
    ys = [y for one in drawn for _, y in one.points] + ([rule[0]] if rule else [])
    x_ticks = ticks(min(xs), max(xs)) if max(xs) > min(xs) else [min(xs)]
    y_ticks = ticks(0.0 if from_zero else min(ys), max(ys))
    x_of = scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_of = scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x_ticks, y_ticks, x_of, y_of, x_label, y_text)]
    if rule:
        y = y_of(rule[0])
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end">{escape(rule[1])}</text>')
    parts += [_line(one, x_of, y_of, y_text) for one in drawn]
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">{"".join(parts)}</svg>'
    return figure(caption, f"<p class=axis>{escape(y_label)}</p>{picture}{_legend(drawn)}")


def _line(one: Series, x_of: Callable, y_of: Callable, y_text: Callable[[float], str]) -> str:
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in one.points)
    kind = " ".join(["thin"] * one.is_thin + ["dashed"] * one.is_dashed)
    text = f'<polyline class="k{one.colour % N_COLOURS} {kind}" points="{path}">'
    text += f"<title>{escape(one.name)}</title></polyline>"
    if len(one.points) <= MOST_DOTS and not one.is_thin:
        text += "".join(
            f'<circle class="k{one.colour % N_COLOURS}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3">'
            f"<title>{escape(one.name)}, {x:g}: {escape(y_text(y))}</title></circle>"
            for x, y in one.points
        )
    return text


def _grid(
    x_ticks: list[float], y_ticks: list[float], x_of: Callable, y_of: Callable, x_label: str, y_text: Callable
) -> str:
    parts = []
    for y in y_ticks:
        at = y_of(y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(y_text(y))}</text>')
    for x in x_ticks:
        at = x_of(x)
        if LEFT - 1 <= at <= WIDTH - RIGHT + 1:
            parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _legend(series: Sequence[Series]) -> str:
    seen = {one.name: one for one in reversed(series)}
    return legend([(name, one.colour, one.is_dashed) for name, one in reversed(seen.items())])


def legend(names: Sequence[tuple[str, int, bool]]) -> str:
    """Return names with their colours, dashed or whole; a single one needs no legend."""
    items = [
        f'<li><i class="{"d" if is_dashed else "b"}{colour % N_COLOURS}"></i>{escape(name)}</li>'
        for name, colour, is_dashed in names
    ]
    return f"<ul class=legend>{''.join(items)}</ul>" if len(items) > 1 else ""


class Tile(NamedTuple):
    """One figure that a page begins with: what it is, the figure, and what to compare it with."""

    name: str
    figure: str
    remark: str = ""


def tiles(shown: Sequence[Tile]) -> str:
    """Return figures in large type, beside each other."""
    items = [
        f"<div class=tile><span class=dim>{escape(one.name)}</span><b>{escape(one.figure)}</b>"
        f"<span class=dim>{escape(one.remark)}</span></div>"
        for one in shown
    ]
    return f"<div class=tiles>{''.join(items)}</div>" if items else ""


class Bar(NamedTuple):
    """One row: a whole, and the part of it that is left."""

    name: str
    whole: float
    part: float
    text: str


def bars(caption: str, rows: Sequence[Bar], whole: str, part: str) -> str:
    """Return horizontal bars, the part drawn over its whole; wholes share one scale."""
    if not rows:
        return ""
    largest = max(row.whole for row in rows) or 1.0
    items = [
        f'<div class=bar><span class=name title="{escape(row.name)}">{escape(row.name)}</span><span class=track>'
        f'<i class=b0 style="width:{100 * row.whole / largest:.2f}%"></i>'
        f'<i class=b1 style="width:{100 * row.part / largest:.2f}%"></i></span>'
        f"<span class=value>{escape(row.text)}</span></div>"
        for row in rows
    ]
    legend = f"<ul class=legend><li><i class=b0></i>{escape(whole)}</li><li><i class=b1></i>{escape(part)}</li></ul>"
    return figure(caption, "".join(items) + legend)


def heat(
    caption: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]],
    text: Callable[[float], str] = lambda value: f"{value:.0%}",
) -> str:  # fmt: skip
    """Return a table whose cells are the darker the nearer their value is to 1."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = []
    for name, line in zip(rows, values, strict=True):
        cells = [
            "<td>-</td>" if v is None else f'<td style="--v:{min(1.0, max(0.0, v)):.3f}">{escape(text(v))}</td>'
            for v in line
        ]
        body.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return figure(caption, f"<div class=scroll><table class=heat><tr><th></th>{head}</tr>{''.join(body)}</table></div>")


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], name: str = "") -> str:
    """Return a table; the first column names the rows. `name` is its id, for programs that read the page."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    identity = f' id="{escape(name)}"' if name else ""
    return figure(caption, f"<div class=scroll><table{identity}><tr>{head}</tr>{body}</table></div>")


def pictures(caption: str, images: Sequence[tuple[str, Sequence[bytes]]], scale: int = 4) -> str:
    """Return grey images (rows of bytes, all of one length) side by side, each under its name."""
    items = [
        f'<div class=picture><img alt="{escape(name)}" width={scale * len(rows[0])} height={scale * len(rows)} '
        f'src="data:image/png;base64,{base64.b64encode(png(rows)).decode()}"><br>{escape(name)}</div>'
        for name, rows in images
    ]
    return figure(caption, f"<div class=pictures>{''.join(items)}</div>")


def png(rows: Sequence[bytes]) -> bytes:
    """Return a grey image as a PNG file."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)  # 8 bits, grey
    content = zlib.compress(b"".join(b"\0" + row for row in rows), 9)  # filter 0 before every row
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def figure(caption: str, content: str) -> str:
    """Return content with a caption above it."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{content}</figure>"


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Return round numbers around low and high, about as many as wanted, at even distances."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return the line that takes low to start and high to end; what spans nothing lies in the middle."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)
