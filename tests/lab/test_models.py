"""Every model of the lab trains: output fits target, every parameter gets a gradient, sizes are the published ones."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import small_models
import torch
from torch import nn

from slimgrad.errors import ConfigError
from slimgrad.lab import models

PUBLISHED_PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg16_bn": 138_365_992,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "mobilenet": 3_504_872,
}


def test_the_small_table_covers_every_model():
    assert sorted(small_models.SMALL) == sorted(models.names())


@pytest.mark.parametrize("name", models.names())
def test_every_parameter_gets_a_finite_gradient(name):
    model = small_models.build(name)
    inputs, target = small_models.example(name)
    models.criterion(name)(model(inputs), target).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path


@pytest.mark.parametrize("name", models.names())
def test_segments_are_modules_of_the_model_in_forward_order(name):
    model = small_models.build(name)
    called = []
    segments = model.segments()
    for i, segment in enumerate(segments):
        segment.register_forward_hook(lambda *_, i=i: called.append(i))
    model(small_models.example(name)[0])
    assert called == list(range(len(segments)))


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMETERS))
def test_full_size_has_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = models.build(name)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", models.names())
def test_default_input_goes_through_the_default_model(name):
    with torch.device("meta"):
        model = models.build(name)
        shape = models.input_shape(name)
        inputs = torch.zeros(2, *shape, dtype=torch.long if len(shape) == 1 else torch.float32)
        assert model(inputs).shape[0] == 2


def test_tied_gpt_shares_one_weight():
    tied = models.build("gpt", classes=11, width=16, depth=1, heads=2, tied=True)
    assert tied.head.weight is tied.tokens.weight
    loose = models.build("gpt", classes=11, width=16, depth=1, heads=2)
    assert loose.head.weight is not loose.tokens.weight


def test_the_same_seed_gives_the_same_example():
    first, again = models.example("resnet18", 2, 16), models.example("resnet18", 2, 16)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.fixture
def own_module(monkeypatch):
    module = types.ModuleType("own_nets")
    module.tiny = lambda classes=2: nn.Linear(4, classes)
    module.shaped = lambda: nn.Linear(4, 2)
    module.shaped.input_shape = (4,)
    monkeypatch.setitem(sys.modules, "own_nets", module)


def test_a_function_of_the_user_is_called_with_the_options(own_module):
    assert models.build("own_nets:tiny", classes=7).out_features == 7
    assert models.input_shape("own_nets:shaped") == (4,)


def test_wrong_names_say_what_to_type(own_module):
    with pytest.raises(ConfigError, match=r"resnet50.*'module:function'.*got 'resnet51'"):
        models.build("resnet51")
    with pytest.raises(ConfigError, match="set PYTHONPATH"):
        models.build("own_nets:absent")
    with pytest.raises(ConfigError, match="PYTHONPATH"):
        models.build("no_such_module_here:net")
    with pytest.raises(ConfigError, match=r"tiny.input_shape = \(3, 224, 224\)"):
        models.input_shape("own_nets:tiny")


def test_a_resnet_has_the_stem_that_is_asked_for():
    x = torch.zeros(1, 3, 32, 32)
    sides = {
        stem: models.build("resnet18", width=0.125, stem=stem).stem(x).shape[-1]
        for stem in ("small", "pooled", "imagenet")
    }
    assert sides == {"small": 32, "pooled": 16, "imagenet": 8}
    with pytest.raises(ConfigError, match="stems imagenet, small, pooled, got 'large'"):
        models.build("resnet18", stem="large")


def test_a_function_of_ones_own_is_found_in_the_folder_one_is_in(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "net_of_my_folder.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(2, 3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])  # as a console script has it
    assert isinstance(models.build("net_of_my_folder:net"), nn.Linear)


def test_what_goes_wrong_in_a_function_of_ones_own_is_not_blamed_on_its_options(own_module, monkeypatch):
    def fails():
        return len(5)

    for name, value in {"fails": fails, "no_model": lambda: 3, "no_function": 7}.items():
        monkeypatch.setattr(sys.modules["own_nets"], name, value, raising=False)
    with pytest.raises(ConfigError, match=r"got TypeError: object of type 'int' has no len.*test_models\.py, line"):
        models.build("own_nets:fails")
    with pytest.raises(ConfigError, match=r"to return an nn\.Module, got int"):
        models.build("own_nets:no_model")
    with pytest.raises(ConfigError, match="a function that returns a model, got int"):
        models.build("own_nets:no_function")
