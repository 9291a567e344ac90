"""Which modules are attached, and which bound holds where."""

from __future__ import annotations

import dataclasses
import gc
import re
import sys

import pytest
import torch
from torch import nn

from slimgrad import Exact, Relative
from slimgrad.attached import Attached, has_ended, storages_of, tensors_in
from slimgrad.errors import ConfigError


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


def test_paths_are_those_of_the_first_model_and_prefixed_for_others(model):
    criterion = nn.CrossEntropyLoss()
    attached = Attached((model, criterion), Relative(0.5), {})
    assert attached.path_of(model[1][0]) == "1.0"
    assert attached.path_of(criterion) == "CrossEntropyLoss"
    assert attached.path_of(nn.ReLU()) is None
    attached.release()


def test_the_first_rule_that_matches_holds(model):
    attached = Attached((model,), Relative(0.5), {"1.*": Exact(), "1.0": Relative(0.1)})
    assert attached.bound_of("1.0") == Exact()
    assert attached.bound_of("1") == Exact(), "what the module's own forward saves belongs to it"
    assert attached.bound_of("0") == Relative(0.5)
    attached.release()


def test_a_model_is_attached_once_until_released(model):
    attached = Attached((model,), Relative(0.5), {})
    with pytest.raises(ConfigError, match="detach"):
        Attached((model,), Relative(0.5), {})
    attached.release()
    Attached((model,), Relative(0.5), {}).release()


class Watcher:
    def __init__(self, gone):
        self.gone = gone

    def note(self):
        self.gone.append(True)


def test_models_are_not_kept_alive():
    model, gone = nn.Linear(4, 4), []
    attached = Attached((model,), Relative(0.5), {})
    watcher = Watcher(gone)
    attached.when_gone(watcher.note)
    del model
    gc.collect()
    assert gone == [True]
    assert attached.paths == {}


def test_constants_are_parameters_and_buffers_as_they_are_now():
    norm = nn.BatchNorm1d(4)
    attached = Attached((norm,), Relative(0.5), {})
    norm.running_mean = torch.zeros(4)
    assert norm.running_mean.untyped_storage() in attached.constants()
    assert norm.weight.untyped_storage() in attached.constants()
    attached.release()


@pytest.mark.parametrize("wrong", [nn.functional.relu, "model", torch.zeros(3)], ids=["function", "word", "tensor"])
def test_what_is_no_module_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"recording\(\)"):
        Attached((wrong,), Relative(0.5), {})


def test_what_is_no_bound_is_refused(model):
    with pytest.raises(ConfigError, match=r"rules\['0'\]"):
        Attached((model,), Relative(0.5), {"0": 0.1})


def test_a_rule_that_holds_nowhere_is_named(model):
    attached = Attached((model,), Relative(0.5), {"0": Exact(), "": Exact(), "*": Exact(), "layr1.*": Exact()})
    (remark,) = attached.remarks()
    assert re.search(r"'layr1\.\*'.* matches no attached module; they are 0, ", remark)
    attached.release()


def test_inputs_are_found_in_nested_arguments():
    x, y = torch.zeros(3), torch.zeros(4)
    made = torch.zeros(5, requires_grad=True) * 2
    assert storages_of(([x, {"y": (y,)}], made)) == {x.untyped_storage(), y.untyped_storage()}


def test_a_frame_that_runs_has_not_ended():
    def ended():
        return sys._getframe()

    assert not has_ended(sys._getframe())
    assert has_ended(ended())
    assert not has_ended(None)


@dataclasses.dataclass
class Given:
    x: torch.Tensor
    rest: object


def test_tensors_are_found_in_whatever_models_take_and_return():
    x, y, z = (torch.ones(1) for _ in range(3))
    found = list(tensors_in([x, {"y": (y, None, "text")}, Given(z, 3), Given]))
    assert [id(tensor) for tensor in found] == [id(x), id(y), id(z)]
    endless = []
    endless.append(endless)
    assert list(tensors_in(endless)) == []
