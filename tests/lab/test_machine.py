"""What doctor and result files say about the machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimgrad import __version__, kernels
from slimgrad.kernels import native
from slimgrad.lab import machine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    """Let kernels be chosen anew in this test, and again after it."""
    kernels.active.cache_clear()
    yield
    kernels.active.cache_clear()


def test_describe_names_all_that_a_number_depends_on() -> None:
    facts = machine.describe()
    assert facts["slimgrad"] == __version__
    assert {"torch", "python", "processor", "kernels", "threads", "accelerator"} <= facts.keys()
    assert all(facts.values())


@pytest.mark.usefixtures("fresh_choice")
def test_the_instruction_set_in_use_is_named() -> None:
    if not native.is_available():
        pytest.skip("the library is not built")
    assert machine.kernels_in_use() == f"native, {native.isa()}"


@pytest.mark.usefixtures("fresh_choice")
def test_the_slow_kernels_are_said_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMGRAD_KERNELS", "reference")
    assert machine.kernels_in_use() == "reference (slow), as SLIMGRAD_KERNELS asks"


@pytest.mark.usefixtures("fresh_choice")
def test_the_slow_kernels_say_why_the_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMGRAD_KERNELS", raising=False)
    monkeypatch.setattr(native, "is_available", lambda: False)
    monkeypatch.setattr(native, "why_unavailable", lambda: "the file is not there")
    assert machine.kernels_in_use() == "reference (slow), because the file is not there"


def test_huge_pages_are_those_that_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    assert machine.describe()["huge pages"] == "not asked for"
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    assert machine.has_huge_pages() == (sys.platform == "linux")


def test_a_missing_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.EXTRAS, "gpu", ("surely-not-installed",))
    assert machine.extras()["gpu"] == {"surely-not-installed": None}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_extras_are_those_of_the_package() -> None:
    import tomllib

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared.pop("dev")
    assert {extra: list(packages) for extra, packages in machine.EXTRAS.items()} == declared
