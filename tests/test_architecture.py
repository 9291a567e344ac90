"""The shape of the tree: the gate passes, each of its checks can fail, and importing slimgrad is light."""

import ast
import json
import subprocess
import sys
import types
from pathlib import Path

import check_tree
import pytest
import size

import slimgrad
from slimgrad import codecs

ROOT = check_tree.ROOT


@pytest.mark.parametrize("check", check_tree.CHECKS, ids=lambda check: check.__name__)
def test_the_tree_is_in_shape(check) -> None:
    assert list(check(ROOT)) == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree without problems."""
    for name, text in {
        "README.md": "# slimgrad\n",
        "CHANGELOG.md": "# Changelog\n\n## [1.2.3] - unreleased\n",
        "src/slimgrad/__init__.py": '__version__ = "1.2.3"\n',
        "src/slimgrad/errors.py": "class SlimgradError(Exception): ...\n",
        "src/slimgrad/codecs/__init__.py": "from slimgrad import errors\n",
        "src/slimgrad/codecs/raw.py": "from slimgrad.errors import SlimgradError\n",
        "tests/test_messages.py": "",
        "tests/codecs/test_raw.py": "",
    }.items():
        write(tmp_path / name, text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def problems(tree: Path) -> list[str]:
    return [problem for check in check_tree.CHECKS for problem in check(tree)]


def test_a_tree_in_shape_has_no_problems(tree: Path) -> None:
    assert problems(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("tests/long.py", "x = 1\n" * 401, "tests/long.py: expected at most 400 lines, got 401"),
        ("tests/a.py", "def f():\n" + "    x = 1\n" * 60, "tests/a.py: expected f within 60 lines, got 61"),
        ("csrc/a.cpp", "int f(int x) {\n" + "  x;\n" * 79 + "}\n", "csrc/a.cpp: expected f within 80 lines, got 81"),
        ("README.md", "line\n" * 161, "README.md: expected at most 160 lines, got 161"),
        ("src/slimgrad/errors.py", "import slimgrad.codecs", "src/slimgrad/errors.py: errors must not import codecs"),
        (
            "src/slimgrad/errors.py",
            "from slimgrad import codecs",
            "src/slimgrad/errors.py: errors must not import codecs",
        ),
        (
            "src/slimgrad/errors.py",
            "def f():\n  import slimgrad.codecs",
            "src/slimgrad/errors.py: errors must not import codecs",
        ),
        (
            "src/slimgrad/codecs/raw.py",
            "from slimgrad import Exact",
            "src/slimgrad/codecs/raw.py: codecs must not import slimgrad",
        ),
        (
            "src/slimgrad/codecs/raw.py",
            "from slimgrad.storage.arena import Arena",
            "src/slimgrad/codecs/raw.py: codecs must not import storage",
        ),
        (
            "src/slimgrad/codecs/raw.py",
            "from .base import Codec",
            "src/slimgrad/codecs/raw.py: codecs must not import a relative path; write it from slimgrad on",
        ),
        (
            "src/slimgrad/codecs/zvc.py",
            "",
            "src/slimgrad/codecs/zvc.py: expected its tests in tests/codecs/test_zvc.py",
        ),
        ("tests/a.py", "# TO" + "DO: more", "tests/a.py:1: unfinished: # TO" + "DO: more"),
        ("CHANGELOG.md", "## [1.2.2]\n", "CHANGELOG.md: expected version 1.2.3 first, got 1.2.2"),
    ],
)
def test_a_problem_is_found(tree: Path, name: str, text: str, problem: str) -> None:
    write(tree / "src/slimgrad/storage/__init__.py", "")
    write(tree / name, text)
    assert problem in problems(tree)


def test_a_new_part_needs_a_layer(tree: Path) -> None:
    write(tree / "src/slimgrad/gadgets.py", "")
    assert "src/slimgrad/gadgets.py: 'gadgets' has no layer; add it to LAYERS in tools/check_tree.py" in problems(tree)


def test_a_folder_without_init_is_found(tree: Path) -> None:
    write(tree / "src/slimgrad/bounds/fixed.py", "")
    assert "src/slimgrad/bounds/fixed.py: expected an __init__.py beside it" in problems(tree)


def test_many_long_functions_are_found_though_none_is_too_long(tree: Path) -> None:
    write(tree / "tests/a.py", "".join(f"def f{n}():\n" + "    x = 1\n" * 40 for n in range(9)))
    assert "expected nine functions of ten within 30 lines, got 41" in problems(tree)


def test_docstrings_do_not_count_as_length() -> None:
    documented = 'def f():\n    """One\n\n    two."""\n    return 1\n'
    assert size._python_functions(documented) == [("f", 2)]


def test_cpp_functions_are_measured() -> None:
    text = (
        "namespace a {\nint f(int x) {\n  return x;\n}\nint g();\nint h() { return 1; }\nvoid k(\n    int x) {\n}\n}\n"
    )
    assert size._cpp_functions(text) == [("f", 3), ("k", 3)]


IMPORT_ALONE = """
import json, sys, torch
before = set(sys.modules)
import slimgrad
from slimgrad.kernels import native
print(json.dumps({
    "new": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    "compiler": sorted(name for name in set(sys.modules) - before if name in ("torch._inductor", "torch._dynamo")),
    "device": torch.cuda.is_initialized(),
    "library": "slimgrad_native" in open("/proc/self/maps").read() if sys.platform == "linux" else False,
}))
"""


def test_importing_slimgrad_is_light() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALONE], capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert "slimgrad" in seen["new"]
    assert not set(seen["new"]) & {"matplotlib", "rich", "typer", "triton", "lightning", "transformers"}
    assert seen["compiler"] == []
    assert seen["device"] is False
    assert seen["library"] is False


def test_the_public_names_are_sorted_and_exact() -> None:
    public = {
        name
        for name, value in vars(slimgrad).items()
        if not name.startswith("_") and not (isinstance(value, types.ModuleType) and name not in slimgrad.__all__)
    }
    assert slimgrad.__all__ == sorted(slimgrad.__all__)
    assert set(slimgrad.__all__) == public


def test_every_codec_is_registered_under_the_name_of_its_file() -> None:
    defined = set()
    for path in (ROOT / "src/slimgrad/codecs").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if bases & {"Codec", "WordCodec"} and node.name != "WordCodec":
                defined.add(path.stem)
    assert defined == set(codecs.names())
    assert all(codecs.get(name).name == name for name in defined)
