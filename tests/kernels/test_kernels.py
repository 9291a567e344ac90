"""Which kernels run: the compiled ones where they are, else the reference, with one warning that says what to do."""

import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimgrad import ConfigError, codecs, kernels
from slimgrad.kernels import native, reference


@pytest.fixture(autouse=True)
def fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let kernels be chosen anew in every test, and again after it."""
    monkeypatch.delenv("SLIMGRAD_KERNELS", raising=False)
    kernels.active.cache_clear()
    yield
    kernels.active.cache_clear()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_available", lambda: False)
    monkeypatch.setattr(native, "why_unavailable", lambda: "the file is not there")


def test_the_compiled_kernels_run_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_available", lambda: True)
    assert kernels.active() is native


def test_the_reference_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMGRAD_KERNELS", "reference")
    assert kernels.active() is reference


@pytest.mark.usefixtures("no_library")
def test_without_the_library_one_warning_says_what_to_do() -> None:
    with pytest.warns(
        UserWarning, match="because the file is not there; install a C\\+\\+ compiler, then: pip install"
    ):
        assert kernels.active() is reference
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.active() is reference


@pytest.mark.usefixtures("no_library")
def test_asking_for_what_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMGRAD_KERNELS", "native")
    with pytest.raises(ConfigError, match="SLIMGRAD_KERNELS=native, but the file is not there"):
        kernels.active()


def test_every_kernel_that_codecs_call_is_in_both_sources() -> None:
    sources = "".join(path.read_text() for path in Path(codecs.__file__).parent.glob("*.py"))
    called = set(re.findall(r"kernels\.active\(\)\.(\w+)", sources))
    assert {"pack_nested", "unpack_nested", "pack_zvc"} <= called
    for name in called:
        assert inspect.signature(getattr(native, name)) == inspect.signature(getattr(reference, name)), name
