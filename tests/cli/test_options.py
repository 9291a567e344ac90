"""Arguments that verbs share: settings of a model in words, and the folder that results go to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from slimgrad.cli import app, options
from slimgrad.errors import ConfigError


def test_settings_are_numbers_truths_or_words() -> None:
    words = ["width=0.25", "depth=3", "stem=small", "tied=True"]
    assert options.settings_of(words) == {"width": 0.25, "depth": 3, "stem": "small", "tied": True}
    assert options.settings_of(None) == {}


@pytest.mark.parametrize("word", ["width", "=3", ""])
def test_a_setting_without_name_or_value_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"--set width=0\.25"):
        options.settings_of([word])


def test_a_folder_is_named_after_what_is_in_it() -> None:
    assert options.folder_of("compare", "resnet18", "cifar10") == Path("out/compare/resnet18-cifar10")
    assert options.folder_of("train", "nets:tiny", "folder:/a/b", "seed3") == Path("out/train/nets.tiny-folder-seed3")


@pytest.mark.parametrize("verb", ["train", "compare", "profile"])
def test_verbs_that_train_take_the_same_arguments(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "300"}).output
    for word in ("MODEL", "--data", "--epochs", "--steps", "--batch", "--size", "--lr", "--set", "--threads", "--out"):
        assert word in shown
    refused = CliRunner().invoke(app, [verb, "resnet18", "--size", "0"], env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert "--size" in refused.output
