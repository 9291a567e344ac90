"""Reads a page as a program would: its tables, its figures, its text, and whatever it asks the network for."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "img", "line", "circle", "i", "link", "input"}  # closed by themselves in SVG, or often not at all


class PageReader(HTMLParser):
    """tables: by id, rows of cells; figures: the embedded JSON; links: what it would fetch; captions; polylines."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.figures: dict[str, Any] = {}
        self.links: list[str] = []
        self.captions: list[str] = []
        self.polylines: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._table: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[name] or "" for name in ("src", "href", "xlink:href") if name in given]
        if tag == "table":
            self._table = self.tables.setdefault(given.get("id") or f"table {len(self.tables)}", [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
        elif tag == "polyline":
            self.polylines.append(given["points"] or "")
        elif tag == "figcaption":
            self.captions.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open and self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.figures = json.loads(data)
        elif "style" not in self._open:
            self.text += data
        if self._open and self._open[-1] in ("td", "th"):
            self._table[-1][-1] += data
        if self._open and self._open[-1] == "figcaption":
            self.captions[-1] += data
