"""Logging for TensorBoard, an extra of the package."""

import sys
import types
from pathlib import Path

import pytest

from slimgrad import ConfigError
from slimgrad.lab.history import History
from slimgrad.lab.tensorboard import Log


def test_without_the_package_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        Log(tmp_path)


def test_every_point_is_written_once_and_none_of_an_earlier_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple] = []
    writer = types.SimpleNamespace(add_scalar=lambda *point: written.append(point), close=lambda: written.append(()))
    module = types.ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = lambda folder: writer
    parent = types.ModuleType("torch.utils.tensorboard")
    parent.writer = module
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", parent)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    run = types.SimpleNamespace(history=History(4))
    run.history.add_test(1, 2.0, 0.25)
    log = Log(tmp_path)
    log.began(run)
    run.history.add_test(2, 1.5, 0.5)
    run.history.add_noise(2, 0.03, None, 12.0, None)
    log.write(run)
    log.write(run)
    log.close()
    assert written == [
        ("test/loss", 1.5, 2), ("test/accuracy", 0.5, 2), ("noise/measured", 0.03, 2), ("noise/ratio", 12.0, 2), ()
    ]  # fmt: skip


def test_the_real_writer_writes_what_tensorboard_reads(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = types.SimpleNamespace(history=History(4))
    log = Log(tmp_path)
    log.began(run)
    run.history.add_test(2, 1.5, 0.5)
    run.history.add_test(4, 1.25, 0.75)
    log.write(run)
    log.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [(point.step, point.value) for point in read.Scalars("test/loss")] == [(2, 1.5), (4, 1.25)]
    assert read.Tags()["scalars"] == ["test/loss", "test/accuracy"]
