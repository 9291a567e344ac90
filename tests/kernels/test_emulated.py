"""The AVX-512 kernels, whatever the machine: where it has AVX-512 the other tests of this folder run them and this file
checks that they are the ones in use; where it has only AVX2, the same tests run against a library that emulates them
(tests/csrc/README.md)."""

from __future__ import annotations

import os
import pathlib
import platform
import shutil
import subprocess
import sys

import contracts
import pytest

ROOT = pathlib.Path(__file__).parents[2]
EMULATION = ROOT / "tests/csrc/avx512_emulation"
AVX512_FLAGS = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mbmi2", "-mfma", "-mf16c"]  # as CMakeLists.txt

needs_avx512 = pytest.mark.skipif("avx512" not in contracts.known_isas(), reason="this machine has no AVX-512")


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++")
    if found is None:
        pytest.skip("there is no C++ compiler; name one with CXX")
    return found


@needs_avx512
def test_avx512_is_in_use_where_the_machine_has_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SLIMGRAD_ISA"}
    program = "from slimgrad.kernels import native; print(native.isa())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "avx512"


@needs_avx512
def test_the_processor_agrees_with_the_cases_of_the_emulation(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "test_intrinsics"
    source = EMULATION / "test_intrinsics.cpp"
    subprocess.run([compiler(), "-std=c++17", "-O2", "-w", *AVX512_FLAGS, source, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.skipif("avx512" in contracts.known_isas(), reason="the other tests run the AVX-512 kernels themselves")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the emulation is built on AVX2")
@pytest.mark.skipif("avx2" not in contracts.known_isas(), reason="the emulation is built on AVX2")
def test_avx512_kernels_equal_the_reference_by_emulation() -> None:
    done = subprocess.run(
        ["sh", ROOT / "tests/csrc/run_emulated.sh"],
        env={**os.environ, "CXX": compiler(), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
