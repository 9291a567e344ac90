"""What the documents show is true: their Python runs, their files exist, their commands are real."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from slimgrad import codecs

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


EXAMPLES = [
    pytest.param(path, number, id=f"{path.name}-{number + 1}")
    for path in DOCUMENTS
    for number in range(len(blocks(path, "python")))
]


@pytest.mark.parametrize(("path", "number"), EXAMPLES)
def test_an_example_runs(path: Path, number: int) -> None:
    program = "\n".join(blocks(path, "python")[: number + 1])  # a later block may use names of an earlier one
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_an_example() -> None:
    assert blocks(ROOT / "README.md", "python")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE) for word in line.split()}
    shown = set(re.findall(r"^make (\w+)|`make (\w+)", path.read_text(), re.MULTILINE))
    assert {name for pair in shown for name in pair if name} <= targets


def test_the_readme_shows_how_to_start() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_every_codec_has_a_heading_in_the_format() -> None:
    pages = [path.read_text() for path in sorted((ROOT / "docs").glob("format*.md"))]
    headings = [heading for page in pages for heading in re.findall(r"^#+ .*$", page, re.MULTILINE)]
    assert [name for name in codecs.names() if not any(f"`{name}`" in heading for heading in headings)] == []
