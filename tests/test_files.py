"""Files are whole or not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slimgrad import ConfigError, StorageFull
from slimgrad.files import cache_folder, write_json, write_whole


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.pt"
    write_whole(path, lambda file: file.write(b"good"))

    def fill(file):
        file.write(b"ba")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFull, match=r"No space left.*state\.pt written before is still whole"):
        write_whole(path, fill)
    assert path.read_bytes() == b"good"
    assert [one.name for one in path.parent.iterdir()] == ["state.pt"]


def test_a_first_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fill(file):
        raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(StorageFull, match="nothing was written"):
        write_whole(tmp_path / "state.pt", fill)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    def interrupted(file):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # as torch.save does on its way out

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "state.pt", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_have_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".a.json.{ended.pid}.part", f".a.json.{os.getppid()}.part", f".b.json.{ended.pid}.part"):
        (tmp_path / name).write_text("half")
    write_json(tmp_path / "a.json", {})
    left = {".b.json." + f"{ended.pid}.part", f".a.json.{os.getppid()}.part", "a.json"}
    assert {one.name for one in tmp_path.iterdir()} == left


def test_a_place_that_will_not_do_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.json", tmp_path / "file" / "deeper" / "a.json", Path("/proc/nowhere/a.json")):
        with pytest.raises(ConfigError, match=r"expected a place where .* choose another"):
            write_json(path, {})
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="directory"):
        write_json(tmp_path / "folder.json", {})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder.json"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    write_whole(path, lambda file: (file.write(b"new"), file.flush(), seen.append(path.read_text())))
    assert (seen, path.read_text()) == (["old"], "new")


seen: list[str] = []


def test_json_has_no_values_that_readers_trip_over(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, 2.5]})
    assert (tmp_path / "a.json").read_text() == '{\n "a": [\n  1,\n  2.5\n ]\n}\n'
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "a.json", {"a": float("nan")})


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/slimgrad")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "slimgrad"
