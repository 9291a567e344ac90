"""What is distributed: the sdist builds, with a compiler and without; the wheel installs where there is none."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_COMPILER = {"CXX": "/nowhere/c++"}
LIBRARY = "slimgrad/libslimgrad_native." + ("dylib" if sys.platform == "darwin" else "so")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the library needs GCC or Clang")]


def run(*command: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command outside the tree, without what points this process at the tree."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "SLIMGRAD_"))}
    words = [str(word) for word in command]
    return subprocess.run(words, env={**inherited, **(env or {})}, cwd=ROOT.anchor, capture_output=True, text=True)


def pip_wheel(source: Path, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build a wheel as `pip install` would, but with the tools of this environment, and from nothing."""
    options = ("--no-build-isolation", "--no-deps", "-w", folder, f"--config-settings=build-dir={folder / 'build'}")
    return run(sys.executable, "-m", "pip", "wheel", *options, source, env=env)


def build_wheel(source: Path, folder: Path, env: dict[str, str]) -> Path:
    done = pip_wheel(source, folder, env)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as the sdist has it."""
    folder = tmp_path_factory.mktemp("sdist")
    done = run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", folder, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"), {"SLIMGRAD_REQUIRE_NATIVE": "1"})


@pytest.fixture(scope="module")
def pure_wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("pure"), NO_COMPILER)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def test_the_sdist_has_the_sources_and_nothing_built(source: Path) -> None:
    for name in ("csrc/slimgrad.h", "CMakeLists.txt", "LICENSE", "tests/test_wheel.py", "tools/check_tree.py"):
        assert (source / name).exists()
    assert not list(source.rglob("*slimgrad_native.*"))
    assert not (source / "build").exists()


def test_the_wheel_is_for_every_python_of_this_platform(wheel: Path) -> None:
    tag = wheel.stem.split("-", 2)[2]
    assert tag.startswith("py3-none-")
    assert not tag.endswith("any")
    assert LIBRARY in names(wheel)


def test_the_wheel_has_data_types_and_licences(wheel: Path) -> None:
    wanted = {"slimgrad/py.typed", "slimgrad/data/fmnist_5000_1000.npz", "slimgrad/data/LICENSE.fashion-mnist"}
    assert wanted <= names(wheel)
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names(wheel))


def test_the_wheel_has_every_module(wheel: Path) -> None:
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules <= names(wheel)


def test_without_a_compiler_the_package_builds_without_the_library(pure_wheel: Path, wheel: Path) -> None:
    assert pure_wheel.stem.endswith("py3-none-any")
    modules = {name for name in names(wheel) if name.startswith("slimgrad/")}
    assert names(pure_wheel) >= modules - {LIBRARY}
    assert LIBRARY not in names(pure_wheel)


def test_the_library_can_be_required(source: Path, tmp_path: Path) -> None:
    done = pip_wheel(source, tmp_path, {**NO_COMPILER, "SLIMGRAD_REQUIRE_NATIVE": "1"})
    assert done.returncode != 0
    assert "CXX" in done.stdout + done.stderr


def installed(wheel: Path, folder: Path) -> Path:
    """Return the command of a new environment that has this wheel, and of others only what the tests have."""
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert made.returncode == 0, made.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others))
    done = run(sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin" / "slimgrad"


def test_the_wheel_runs_where_there_is_no_compiler(wheel: Path, tmp_path: Path) -> None:
    done = run(installed(wheel, tmp_path / "environment"), "doctor", "--self-test", env={"PATH": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native" in done.stdout
    assert "self-test passed" in done.stdout


def test_the_package_runs_without_the_library(pure_wheel: Path, tmp_path: Path) -> None:
    done = run(installed(pure_wheel, tmp_path / "environment"), "doctor", "--self-test", env={"PATH": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reference (slow), because" in done.stdout
    assert "self-test passed" in done.stdout
