"""The gate on the shape of the tree: sizes, import directions, a test file per module, versions. `make check` runs it.

    python tools/check_tree.py        prints every problem and ends with status 1 if there is one

Imports point one way, from the top of LAYERS to the bottom. Each check takes the root of a tree and yields problems as
sentences, so that tests/test_architecture.py can show each of them a tree that is wrong.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from size import ROOT, files, functions, n_lines, quantile

MAX_FILE = 400
MAX_FUNCTION = {".py": 60, ".cpp": 80, ".h": 80, ".inc": 80}  # a kernel body is one loop that reads best whole
MAX_P90_FUNCTION = 30
MAX_README = 160
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")  # in halves, so that this file passes

LAYERS = (  # from the top; a module may import its own layer and those below
    {"cli", "__main__"},
    {"lab", "integrations"},
    {"slimgrad"},  # the public names: only what is above may ask for them
    {
        "session",
        "blocks",
        "derived",
        "deriving",
        "plans",
        "recipes",
        "recorder",
        "attached",
        "audit",
        "planner",
        "progress",
        "quiet",
        "tuning",
        "finer",
        "local_errors",
        "loss_scale",
        "measure",
        "readers",
        "streams",
        "at_once",
        "products",
    },
    {"coder", "leftovers", "shelf", "saved", "tiers", "report", "view_bounds"},
    {"policy", "bounds", "consumers", "origins", "roles", "simple"},
    {"codecs", "storage", "ledger"},
    {"kernels"},
    {"files"},
    {"errors"},
)
STRANGERS = ({"codecs", "storage"}, {"codecs", "ledger"})  # of one layer, but they know nothing of each other

TESTED_AS = {"errors": "messages"}  # what matters about an error is what it says


def check_sizes(root: Path) -> Iterator[str]:
    """Files and functions stay short: good code is governed by its worst file."""
    lengths = []
    for path in files(root):
        name = path.relative_to(root)
        if n_lines(path) > MAX_FILE:
            yield f"{name}: expected at most {MAX_FILE} lines, got {n_lines(path)}"
        for function in functions(path):
            lengths.append(function.lines)
            limit = MAX_FUNCTION.get(path.suffix, MAX_FUNCTION[".py"])
            if function.lines > limit:
                yield f"{name}: expected {function.name} within {limit} lines, got {function.lines}"
    if quantile(lengths, 0.9) > MAX_P90_FUNCTION:
        yield f"expected nine functions of ten within {MAX_P90_FUNCTION} lines, got {quantile(lengths, 0.9)}"
    if n_lines(root / "README.md") > MAX_README:
        yield f"README.md: expected at most {MAX_README} lines, got {n_lines(root / 'README.md')}"


def check_imports(root: Path) -> Iterator[str]:
    """Imports inside the package point from the upper layers to the lower ones."""
    package = root / "src" / "slimgrad"
    for path in sorted(package.rglob("*.py")):
        user = _part_of(path, package)
        name = path.relative_to(root)
        if user not in set().union(*LAYERS):
            yield f"{name}: {user!r} has no layer; add it to LAYERS in tools/check_tree.py"
            continue
        for used in sorted(_parts_used(path, package)):
            if used != user and user != "slimgrad" and not _may_import(user, used):
                yield f"{name}: {user} must not import {used}"


def _may_import(user: str, used: str) -> bool:
    if {user, used} in STRANGERS:
        return False
    return _height(user) >= _height(used)


def _height(part: str) -> int:
    return next((len(LAYERS) - number for number, layer in enumerate(LAYERS) if part in layer), len(LAYERS) + 1)


def _part_of(path: Path, package: Path) -> str:
    """Return the part of the package that a file belongs to: its top folder, or its own name at the top."""
    first = path.relative_to(package).parts[0]
    return "slimgrad" if first == "__init__.py" else first.removesuffix(".py")


def _parts_used(path: Path, package: Path) -> set[str]:
    used = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "slimgrad" else [module]
        else:
            continue
        for name in names:
            head, _, rest = name.partition(".")
            part = rest.split(".")[0]
            is_part = (package / part).is_dir() or (package / f"{part}.py").exists()
            if head == "slimgrad":
                used.add(part if part and is_part else "slimgrad")
            elif head == "":
                used.add("a relative path; write it from slimgrad on")
    return used


def check_mirror(root: Path) -> Iterator[str]:
    """Every module has its test file: at the same place under tests/, or one folder up, or that of its whole folder."""
    package, tests = root / "src" / "slimgrad", root / "tests"
    for path in sorted(package.rglob("*.py")):
        below = path.relative_to(package)
        if not (path.parent / "__init__.py").exists():
            yield f"{path.relative_to(root)}: expected an __init__.py beside it"
        if below.name in ("__init__.py", "__main__.py") and not functions(path):
            continue  # names only
        own = below.parent.name if below.name == "__init__.py" else below.stem
        own = TESTED_AS.get(own, own)
        places = (below.parent / own, below.parent.parent / own, below.parent.parent / below.parent.name)
        if not any((tests / place.parent / f"test_{place.name}.py").exists() for place in places):
            wanted = (tests / below.parent / f"test_{own}.py").relative_to(root)
            yield f"{path.relative_to(root)}: expected its tests in {wanted}"


def check_unfinished(root: Path) -> Iterator[str]:
    """Nothing is left for later without a decision file that names it."""
    for path in files(root):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if UNFINISHED.search(line):
                yield f"{path.relative_to(root)}:{number}: unfinished: {line.strip()}"


def check_version(root: Path) -> Iterator[str]:
    """The newest heading of the changelog is the version of the package."""
    version = _first(r'^__version__ = "(.+)"', root / "src" / "slimgrad" / "__init__.py")
    newest = _first(r"^## \[(\d+\.\d+\.\d+)\]", root / "CHANGELOG.md")
    if version != newest:
        yield f"CHANGELOG.md: expected version {version} first, got {newest}"


def _first(pattern: str, path: Path) -> str | None:
    found = re.search(pattern, path.read_text(), re.MULTILINE)
    return found and found[1]


CHECKS = (check_sizes, check_imports, check_mirror, check_unfinished, check_version)


def main() -> int:
    problems = [problem for check in CHECKS for problem in check(ROOT)]
    print("\n".join(problems) or "tree: no problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
