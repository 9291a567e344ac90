"""The density study: what is observed of one forward, and the four claims."""

import math

import pytest
import torch
from torch import nn

from slimgrad.lab.density import CODES, Layer, entropy, layer_of, observations, observe, picture


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(512, 16), nn.ReLU(),
    )  # fmt: skip


def test_layers_are_observed_in_order_and_the_model_is_left_as_it_was() -> None:
    model, x = net().eval(), torch.randn(4, 1, 16, 16)
    before = [b.clone() for b in model.buffers()]
    layers = observe(model, x)
    assert [(layer.name, layer.is_pool) for layer in layers] == [("2", False), ("3", True), ("7", False)]
    assert [layer.shape for layer in layers] == [(8, 16, 16), (8, 8, 8), (16,)]
    with torch.no_grad():
        rectified = model[2](model[1].train()(model[0](x)))
    assert layers[0].density == pytest.approx(float((rectified != 0).float().mean()))
    assert layers[1].density > layers[0].density
    assert not model[2]._forward_hooks
    model = net().eval()
    observe(model, x)
    assert all(map(torch.equal, before, model.buffers()))
    assert not model.training


def test_random_numbers_go_on_as_if_nothing_had_been() -> None:
    model, x = net(), torch.randn(4, 1, 16, 16)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    observe(model, x)
    assert torch.equal(torch.rand(1), expected)


def test_a_model_without_activation_modules_has_no_layers() -> None:
    assert observe(nn.Linear(2, 2), torch.zeros(1, 2)) == []
    assert [one.holds for one in observations({0.0: [], 0.5: [], 1.0: []})] == [None, None, None, None]


def test_ratios_follow_the_zeros() -> None:
    sparse = torch.randn(2, 16, 32, 32).masked_fill(torch.rand(2, 16, 32, 32) > 0.1, 0.0)
    layer = layer_of("a", False, sparse)
    assert layer.density == pytest.approx(0.1, abs=0.01)
    assert set(layer.ratios) == {"NCHW", "NHWC"}
    assert set(layer.ratios["NCHW"]) == set(CODES)
    assert layer.ratios["NCHW"]["zvc"] == pytest.approx(1 / (0.1 + 1 / 32), rel=0.1)  # a bit per value and what is left
    assert layer.ratios["NCHW"]["nested"] > layer.ratios["NCHW"]["zvc"]
    flat = layer_of("b", False, torch.randn(8, 100).relu())
    assert set(flat.ratios) == {"NCHW"}
    assert flat.picture == []


def test_whole_channels_of_zeros_are_runs_in_one_layout_only() -> None:
    maps = torch.randn(1, 32, 32, 32)
    maps[:, ::2] = 0.0
    ratios = layer_of("a", False, maps).ratios
    assert ratios["NCHW"]["rle"] > 1.4 * ratios["NHWC"]["rle"]


def test_entropy_of_levels() -> None:
    assert entropy(torch.zeros(10)) == 0.0
    assert entropy(torch.tensor([0.0, 1.0] * 8)) == pytest.approx(1.0)
    assert entropy(torch.tensor([0.0, 1.0, -1.0, 0.0])) == pytest.approx(1.5)
    assert entropy(torch.randn(10_000)) < math.log2(20)


def test_a_picture_shows_the_first_channels_as_tiles() -> None:
    out = torch.zeros(1, 5, 4, 4)
    out[0, 1, 2, 3] = -1.0
    rows = picture(out)
    assert (len(rows), len(rows[0])) == (10, 10)  # 2 x 2 tiles with a gap each
    assert [(y, x) for y, row in enumerate(rows) for x, value in enumerate(row) if value == 255] == [(2, 5 + 3)]


def course(*densities: list[float], pools: tuple[int, ...] = ()) -> dict[float, list[Layer]]:
    """Return layers by time; one list of five densities for each."""
    return {
        i / 4: [Layer(f"l{n}", n in pools, (), of[i], 0.0, {}, []) for n, of in enumerate(densities)] for i in range(5)
    }


def test_the_four_claims_hold_where_they_do() -> None:
    bent = [0.5, 0.2, 0.1, 0.15, 0.2]
    found = observations(course([0.5] * 5, [0.7] * 5, bent, [d - 0.05 for d in bent], pools=(1,)))
    assert [one.holds for one in found] == [True, True, True, True]
    assert "5 of 5" in found[1].found


def test_claims_that_a_short_training_or_pooling_alone_cannot_tell_are_open() -> None:
    short = {time: layers for time, layers in course([0.5] * 5, [0.4] * 5).items() if time in (0.0, 1.0)}
    assert [one.holds for one in observations(short)] == [True, None, None, None]
    assert [one.holds for one in observations(course([0.5] * 5, pools=(0,)))] == [None, None, None, None]


def test_layers_that_are_equally_dense_have_the_mean_of_their_ranks() -> None:
    assert observations(course(*([1.0] * 5 for _ in range(6))))[3].holds is None
    found = observations(course([0.5] * 5, [0.4] * 5, [0.4] * 5, [0.4] * 5))[3]
    assert found.holds and "-0.77" in found.found  # Spearman's coefficient of 4, 2, 2, 2


def test_a_module_that_is_used_twice_is_two_layers() -> None:
    shared = nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)
    assert [layer.name for layer in observe(net, torch.randn(2, 4))] == ["1", "1 (2)"]


def test_and_do_not_where_they_do_not() -> None:
    rising = [0.1, 0.2, 0.3, 0.4, 0.5]
    found = observations(course([0.9] * 5, [0.5] * 5, rising, [0.95] * 5, pools=(1,)))
    assert [one.holds for one in found] == [False, False, False, False]
    assert [one.holds for one in observations(course([0.5] * 5, rising))][1::2] == [None, None]
