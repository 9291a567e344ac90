"""One HTML file that shows everything and asks for nothing: no network, no script, light and dark, wide and narrow.

    write(path, "title", [section("memory", chart, chart), ...], figures={"ratio": 14.4})

`figures` are the numbers behind the page as JSON, inside it, for programs. The charts are made in charts.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slimgrad.files import write_whole

STYLE = """
:root { color-scheme: light dark; --bg: #fbfbfa; --fg: #1d2126; --dim: #646c76; --line: #dfe2e6; --card: #ffffff;
  --c0: #8b929b; --c1: #1467c8; --c2: #c8452f; --c3: #1a8a5f; --c4: #8452b8; --c5: #b07a00; --hot: 20 103 200; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171a; --fg: #e6e8ea; --dim: #9aa3ad; --line: #2f353c;
  --card: #1c2025; --c0: #8d959e; --c1: #5aa4f5; --c2: #f0806c; --c3: #4fc795; --c4: #b892ea; --c5: #e0b13e;
  --hot: 90 164 245; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--bg); color: var(--fg);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .5rem; }
p { max-width: 50rem; margin: .4rem 0; } .dim { color: var(--dim); font-size: .85rem; }
.grid2 { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.stack { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); }
figure { margin: 0; padding: .8rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; } .axis { font-size: .8rem; color: var(--dim); margin: 0; }
svg { width: 100%; height: auto; display: block; overflow: visible; } svg text { font-size: 13px; fill: var(--dim); }
.grid { stroke: var(--line); } .rule { stroke: var(--fg); stroke-dasharray: 4 4; }
polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; } .thin { stroke-width: 1; opacity: .45; }
.dashed { stroke-dasharray: 5 4; }
.k0 { stroke: var(--c0); } .k1 { stroke: var(--c1); } .k2 { stroke: var(--c2); } .k3 { stroke: var(--c3); }
.k4 { stroke: var(--c4); } .k5 { stroke: var(--c5); } circle { fill: var(--card); stroke-width: 2; }
.b0 { background: var(--c0); } .b1 { background: var(--c1); } .b2 { background: var(--c2); }
.b3 { background: var(--c3); } .b4 { background: var(--c4); } .b5 { background: var(--c5); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .4rem 0 0; padding: 0;
  font-size: .85rem; } .legend i { display: inline-block; width: .9rem; height: .6rem; margin-right: .35rem;
  border-radius: 2px; }
.d0, .d1, .d2, .d3, .d4, .d5 { height: 0 !important; border-top: 2px dashed; vertical-align: middle; }
.d0 { color: var(--c0); } .d1 { color: var(--c1); } .d2 { color: var(--c2); } .d3 { color: var(--c3); }
.d4 { color: var(--c4); } .d5 { color: var(--c5); }
polygon { opacity: .16; } .f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); }
.f3 { fill: var(--c3); } .f4 { fill: var(--c4); } .f5 { fill: var(--c5); }
svg .peak { fill: var(--fg); font-size: 15px; font-weight: 600; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; stroke-linejoin: round; } svg.narrow { display: none; }
.tiles { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr));
  margin: .8rem 0; } .tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .7rem .9rem; display: grid; gap: .1rem; } .tile b { font-size: 1.35rem; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.bar { display: grid; grid-template-columns: minmax(6rem, 12rem) 1fr minmax(5rem, max-content); gap: .5rem;
  align-items: center; font-size: .82rem; margin: .15rem 0; } .bar .name { overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; } .track { position: relative; height: .8rem; } .track i { position: absolute; inset: 0 auto 0 0;
  border-radius: 2px; } .track .b0 { opacity: .35; } .value { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap;
  font-variant-numeric: tabular-nums; } th:first-child { text-align: left; } tr:last-child > * { border-bottom: 0; }
.heat td { background: rgb(var(--hot) / calc(var(--v) * .75)); }
.pictures { display: flex; flex-wrap: wrap; gap: .8rem; font-size: .8rem; } .pictures img { image-rendering: pixelated;
  max-width: 100%; height: auto; border: 1px solid var(--line); }
@media (max-width: 36rem) { body { padding: .6rem; font-size: 15px; } svg text { font-size: 19px; }
  svg.wide { display: none; } svg.narrow { display: block; } svg.narrow text { font-size: 14px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; } .tile { padding: .5rem .6rem; }
  .tile b { font-size: 1.05rem; }
  .bar { grid-template-columns: 1fr minmax(5rem, max-content); } .bar .track { grid-column: 1 / -1; grid-row: 2; } }
"""


def section(title: str, *parts: str, text: str = "") -> str:
    """Return a heading with charts beside each other where there is room; parts that are empty leave no trace."""
    shown = [part for part in parts if part]
    if not shown:
        return ""
    words = f"<p class=dim>{escape(text)}</p>" if text else ""
    return f"<section><h2>{escape(title)}</h2><div class=grid2>{''.join(shown)}</div>{words}</section>"


def wide(title: str, *parts: str, text: str = "") -> str:
    """Return a heading with parts below each other, over the whole width."""
    return section(title, *parts, text=text).replace("<div class=grid2>", "<div class=stack>", 1)


def html(title: str, sections: Sequence[str], lead: str = "", figures: Mapping[str, Any] | None = None) -> str:
    """Return the whole page."""
    numbers = json.dumps(dict(figures or {}), allow_nan=False).replace("</", "<\\/")  # cannot end the element early
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p class=dim>{escape(lead)}</p>{''.join(sections)}"
        f'<script type="application/json" id="figures">{numbers}</script></body></html>\n'
    )


def write(
    path: Path, title: str, sections: Sequence[str], lead: str = "", figures: Mapping[str, Any] | None = None
) -> None:
    """Write the page to a file, which is the old one until the new one is whole."""
    text = html(title, sections, lead, figures)
    write_whole(path, lambda file: file.write(text.encode()))
