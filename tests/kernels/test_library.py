"""Loading the library: where it is looked for, what is said when it is not there, and which instruction set is used."""

import os
import subprocess
import sys
from pathlib import Path

import contracts
import pytest

from slimgrad.errors import ConfigError
from slimgrad.kernels import library

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh process with these variables."""
    known = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run([sys.executable, "-c", program], env=known, capture_output=True, text=True, check=False)


def test_the_instruction_sets_of_this_machine_can_be_chosen() -> None:
    before = library.isa()
    assert before in contracts.known_isas()
    assert "portable" in contracts.known_isas()
    for isa in contracts.known_isas():
        library.use_isa(isa)
        assert library.isa() == isa
    library.use_isa(before)


def test_an_unknown_instruction_set_changes_nothing() -> None:
    before = library.isa()
    with pytest.raises(ConfigError, match=r"\(avx512, avx2, portable\), got 'sse9'"):
        library.use_isa("sse9")
    assert library.isa() == before


def test_the_environment_chooses_the_instruction_set() -> None:
    shown = run("from slimgrad.kernels import library; print(library.isa())", SLIMGRAD_ISA="portable")
    assert shown.stdout == "portable\n"
    refused = run("from slimgrad.kernels import library; library.isa()", SLIMGRAD_ISA="sse9")
    assert "expected SLIMGRAD_ISA to be avx512, avx2 or portable and in this machine, got 'sse9'" in refused.stderr


def test_a_missing_library_leaves_the_reference_and_one_warning() -> None:
    program = """
import torch
from slimgrad import codecs
for _ in range(2):
    assert torch.equal(codecs.decode(codecs.encode(torch.eye(30), "zvc")), torch.eye(30))
"""
    done = run(program, SLIMGRAD_LIBRARY="/nowhere/lib.so", SLIMGRAD_KERNELS="")
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("slow reference kernels, because the compiled library could not be loaded (/nowhere/lib.so")
        == 1
    )
    assert "pip install" in done.stderr


def test_a_library_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"not a library")
    shown = run(
        "from slimgrad.kernels import library; print(library.is_available(), library.why_unavailable())",
        SLIMGRAD_LIBRARY=str(tmp_path / "lib.so"),
    )
    assert shown.stdout.startswith("False the compiled library could not be loaded")


def test_the_pool_is_that_of_torch() -> None:
    """Two OpenMP runtimes would fight for the cores; see Note [Whose threads] in csrc/parallel.h."""
    address = library.pool_of_torch()
    if sys.platform == "linux":
        assert address
