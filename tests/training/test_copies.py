"""Copies, pickles and state of an attached model are those of a plain one."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import small_models
import torch
from scenes import gradients, same

import slimgrad

COARSE = slimgrad.Relative(0.5)


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_torch_save])
def test_a_copy_of_an_attached_model_is_plain(duplicate):
    """The copy computes plain gradients and records nothing; the original stays attached."""
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18")
    plain = gradients(model(inputs).square().sum(), model)
    with slimgrad.attach(model, bound=COARSE, min_bytes=64) as session:
        twin = duplicate(model)
        assert same(gradients(twin(inputs).square().sum(), twin), plain)
        assert session.report().to_dict()["total"]["saved_in"] == 0
        assert not same(gradients(model(inputs).square().sum(), model), plain)
        assert session.report().to_dict()["total"]["saved_in"] > 0
    assert same(gradients(model(inputs).square().sum(), model), plain)


def test_a_copy_in_the_middle_of_a_step():
    """An average of the weights is often copied between forward and backward."""
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18")
    plain = gradients(model(inputs).square().sum(), model)
    with slimgrad.attach(model, bound=slimgrad.Exact(), min_bytes=64):
        loss = model(inputs).square().sum()
        twin = copy.deepcopy(model)
        assert same(gradients(loss, model), plain)
        assert same(gradients(twin(inputs).square().sum(), twin), plain)


def test_a_copy_can_be_attached_on_its_own():
    model = small_models.build("resnet18")
    inputs, _ = small_models.example("resnet18")
    with slimgrad.attach(model, bound=slimgrad.Exact()):
        twin = copy.deepcopy(model)
        with slimgrad.attach(twin, bound=COARSE, min_bytes=64) as session:
            twin(inputs).sum().backward()
            assert session.report().to_dict()["total"]["coded_in"] > 0


def test_state_dict_is_unchanged_by_attaching():
    model = small_models.build("resnet18")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    named = [name for name, _ in model.named_modules()]
    with slimgrad.attach(model, bound=COARSE):
        during = model.state_dict()
        assert list(during) == list(before)
        assert same(list(during.values()), list(before.values()))
        assert [name for name, _ in model.named_modules()] == named
        model.load_state_dict(before)
        assert model.state_dict()._metadata == small_models.build("resnet18").state_dict()._metadata
