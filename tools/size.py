"""`make size`: files, lines and function lengths per folder. check_tree.py holds the limits.

A function's length is its lines without the docstring. In C++ a function begins with a line at column 0 that has a
parenthesis and ends with a brace at column 0, which is how csrc is written.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "csrc", "tests", "tools", "bench", "examples")
SUFFIXES = (".py", ".cpp", ".h", ".inc", ".sh")
NOT_A_FUNCTION = re.compile(r"^(namespace|struct|class|enum|union|extern|typedef|#|//|/\*)|=\s*\{$")


class Function(NamedTuple):
    """One function of one file."""

    path: Path
    name: str
    lines: int


def files(root: Path = ROOT) -> list[Path]:
    """Return the source files of the tree, sorted."""
    found = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in SUFFIXES and "__pycache__" not in path.parts)


def n_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text().splitlines())


def functions(path: Path) -> list[Function]:
    """Return the functions of a Python or C++ file."""
    text = path.read_text()
    if path.suffix == ".py":
        return [Function(path, name, lines) for name, lines in _python_functions(text)]
    return [Function(path, name, lines) for name, lines in _cpp_functions(text)]


def _python_functions(text: str) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            is_documented = ast.get_docstring(node, clean=False) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if is_documented else 0
            found.append((node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring))
    return found


def _cpp_functions(text: str) -> list[tuple[str, int]]:
    found = []
    began = None
    for number, line in enumerate(text.splitlines()):
        if began is None and re.match(r"^[A-Za-z_].*\(", line) and not NOT_A_FUNCTION.search(line):
            began = (number, line)
        elif began is not None and re.match(r"^}", line):
            found.append((began[1].split("(")[0].split()[-1], number - began[0] + 1))
            began = None
        if began is not None and line.rstrip().endswith((";", "}")) and began[0] == number:
            began = None  # a declaration, or all on one line
    return found


def quantile(lengths: list[int], share: float) -> int:
    """Return the length that this share of the lengths does not exceed."""
    return sorted(lengths)[min(len(lengths) - 1, int(share * len(lengths)))] if lengths else 0


def main() -> None:
    print(f"{'folder':<28}{'files':>6}{'lines':>8}{'longest':>9}   functions: median / p90 / max")
    groups: dict[str, list[Path]] = {}
    for path in files():
        parts = path.relative_to(ROOT).parts[:-1]
        groups.setdefault("/".join(parts[:3]), []).append(path)
    for folder, paths in groups.items():
        sizes = [n_lines(path) for path in paths]
        lengths = [function.lines for path in paths for function in functions(path)]
        spread = " / ".join(str(quantile(lengths, share)) for share in (0.5, 0.9, 1.0))
        print(f"{folder:<28}{len(paths):>6}{sum(sizes):>8}{max(sizes):>9}   {spread:>14}")
    print(f"{'all':<28}{len(files()):>6}{sum(n_lines(path) for path in files()):>8}")


if __name__ == "__main__":
    main()
