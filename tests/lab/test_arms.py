"""The three arms train the same parameters and give the same gradients, up to the bound of the slim one."""

from __future__ import annotations

import pytest
from scenes import relative_error, same

import slimgrad
from slimgrad.errors import ConfigError
from slimgrad.lab.arms import Material, Setup, Step, in_fresh_process, policy_of, setup_of

TINY = Setup("tiny_nets:cnn", batch=2, size=32, bound="exact", threads=1)


@pytest.fixture
def material():
    return Material(TINY)


def gradients_of(step):
    step.material.optimizer.param_groups[0]["lr"] = 0.0
    step()
    return [p.grad.clone() for p in step.model.parameters()]


def test_arms_share_parameters_and_agree(material):
    plain, slim, again = (Step(material, arm) for arm in ("plain", "slim", "checkpoint"))
    for one, other in zip(plain.model.parameters(), slim.model.parameters(), strict=True):
        assert one is other
    expected = gradients_of(plain)
    assert same(gradients_of(slim), expected)
    assert relative_error(gradients_of(again), expected) < 1e-6
    assert slim.session.report().saved_ratio > 1
    assert plain.session is None
    slim.session.detach()


def test_static_memory_is_all_that_stays(material):
    sizes = {t.untyped_storage()._cdata: t.nbytes for t in material.static()}
    n_parameters = sum(p.numel() for p in material.model.parameters())
    inputs = material.inputs.nbytes + material.target.nbytes
    assert sum(sizes.values()) >= 3 * 4 * n_parameters + inputs  # values, gradients and momentum


def test_the_checkpointed_arm_really_computes_again(material):
    calls = []
    for arm in ("plain", "checkpoint"):
        step = Step(material, arm)
        inner = step.model.segments()[0][0]
        inner.register_forward_pre_hook(lambda *_, arm=arm: calls.append(arm))
        step()
    assert calls == ["plain", "checkpoint", "checkpoint"]


def test_wrong_setups_say_what_to_type():
    with pytest.raises(ConfigError, match="'bfloat16' or 'float16', got 'int8'"):
        Material(Setup("tiny_nets:cnn", autocast="int8"))
    with pytest.raises(ConfigError, match=r"plain, slim, checkpoint, swap, .*blocks, got 'fast'"):
        Step(Material(TINY), "fast")


def test_arms_beyond_slim_have_policies_of_their_own():
    assert policy_of("plain") is None
    assert policy_of("checkpoint") is None
    assert policy_of("slim") == slimgrad.Compress()
    assert policy_of("swap, uncoded") == slimgrad.Swap("disk", compress=False)
    assert policy_of("hybrid:1000") == slimgrad.Hybrid(1000, counts="live")


def test_a_setup_survives_the_way_to_another_process():
    setup = Setup("gpt", 4, 128, "absolute:0.1", "bfloat16", 2, True)
    words = [f"{name}={getattr(setup, name)}" for name in Setup.__slots__]
    assert setup_of(words) == setup
    assert setup_of(["model=lstm"]) == Setup("lstm")


def test_defaults_are_written_out():
    assert Setup("resnet50").filled().batch == 16
    assert Setup("lstm", batch=3).filled().batch == 3
    assert str(Setup("resnet50").filled()) == "resnet50, batch 16, size 224x224, relative:0.5, float32"


def test_a_process_that_fails_tells_why():
    with pytest.raises(ConfigError, match="no_such_module"):
        in_fresh_process("slimgrad.lab.no_such_module", TINY)
