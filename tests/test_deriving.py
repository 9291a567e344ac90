"""Deriving begins and ends with the calls of norms and activations, whoever makes them, where the bound allows it."""

from __future__ import annotations

import pytest
import torch
from derived_scenes import Promise, X, attached, chain, saved_by, stored_at
from scenes import Calls, gradients, same
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import slimgrad
from slimgrad import Compress, Noise, Recompute, Relative


def test_functions_are_followed_like_modules():
    torch.manual_seed(0)
    members = {"fc": nn.Linear(16, 64), "out": nn.Linear(64, 16), "norm": nn.LayerNorm(16)}

    def forward(x):
        h = F.gelu(members["fc"](members["norm"](x)), approximate="tanh")
        return members["out"](h)

    with attached(model := Calls(forward, **members)) as session:
        x = torch.randn(32, 16, requires_grad=True)
        result = model(x * 2.0)
        expected = F.gelu(saved_by(result, "Gelu", "self"), approximate="tanh")
        torch.testing.assert_close(saved_by(result, "Addmm", "mat1"), expected)
        gradients(result.sum(), x)
        stored = stored_at(session)
    assert stored["out"] == stored["fc"] == 0 < stored["norm"]


@pytest.mark.parametrize(
    "options",
    [
        {"bound": Relative(0.4)},
        {"bound": slimgrad.Exact()},
        {"policy": Compress(derive=False)},
        {"policy": Compress("zvc")},
        {"rules": {"3": Relative(0.4)}},
    ],
    ids=["fixed bound", "exact", "not wished", "another codec", "another bound where it is read"],
)
def test_everything_is_stored_where_the_bound_speaks_of_values(options):
    with attached(model := chain(nn.ReLU()), **options) as session:
        gradients(model(X).sum(), model)
        assert stored_at(session)["2"] > 4 * 8 * 144 / 8


def test_an_error_in_a_norm_leaves_the_next_forward_as_it_should_be():
    model = chain(nn.ReLU())
    with attached(model) as session:
        with pytest.raises(RuntimeError, match="running_mean"):
            model[1](torch.randn(4, 9, 12, 12, requires_grad=True))
        assert gradients(model(X).sum(), model)
        assert stored_at(session)["2"] == 0


def test_noise_derives_and_recompute_does_not():
    assert Noise.derives
    with slimgrad.attach(model := chain(nn.ReLU()), min_bytes=64) as session:
        gradients(model(X).sum(), model)
        assert "derived" in session.report().by_module()["2"].codecs
    with slimgrad.attach(model := chain(nn.ReLU()), policy=Recompute(), min_bytes=64) as session:
        gradients(model(X).sum(), model)
        assert all("derived" not in sums.codecs for sums in session.report().by_module().values())


def test_a_norm_with_running_statistics_is_not_derived_from():
    model = chain(nn.ReLU())
    model[1].eval()
    with attached(model) as session:
        gradients(model(X).sum(), model)
        assert stored_at(session)["2"] > 0


def test_what_is_kept_exactly_may_be_derived_from_under_any_bound_that_derives():
    with attached(model := chain(nn.ReLU()), rules={"1": slimgrad.Exact()}) as session:
        slim = gradients(model(X).square().sum(), model)
        assert stored_at(session)["2"] == 0
    for ours, exact in zip(slim, gradients(model(X).square().sum(), model), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-3)
    with attached(model, rules={"3": slimgrad.Exact()}):
        slim = gradients(model(X).square().sum(), model[3])
    assert same(slim, gradients(model(X).square().sum(), model[3]))
    other = Promise(0.2)
    with attached(model, rules={"3": other}) as session:
        gradients(model(X).sum(), model)
        assert stored_at(session)["2"] > 4 * 8 * 144 / 8


def test_a_checkpointed_block_is_computed_no_more_often_than_in_plain_torch():
    norm, conv = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
    block = nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.ReLU(), nn.BatchNorm2d(3))
    model = Calls(lambda x: conv(checkpoint(block, x, use_reentrant=False)), block=block, conv=conv)
    with slimgrad.attach(model, min_bytes=0):
        gradients(model(X).sum(), model)
    assert int(norm.num_batches_tracked) == 2  # once in forward, once in backward


def test_hooks_of_others_are_asked_once():
    model, kept = chain(nn.ReLU()), {}

    def pack(tensor):
        kept[len(kept)] = tensor
        return len(kept) - 1

    with attached(model), torch.autograd.graph.saved_tensors_hooks(pack, kept.pop):
        loss = model(X).sum()
    assert gradients(loss, model)


@pytest.mark.parametrize(
    "other",
    [
        lambda y: torch.vmap(F.relu)(y),
        lambda y: F.relu(y.detach().to_sparse()).to_dense() + y,
        lambda y: nn.ReLU()(torch.nested.nested_tensor([y[0, 0], y[1, 0]], layout=torch.strided)).unbind()[0] + y,
        lambda y: _inferred(y) + y,
    ],
    ids=["vmap", "sparse", "nested", "inference"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_that_are_not_plain_are_left_alone(other):
    model = chain()
    changed = Calls(lambda x: model[2](other(model[1](model[0](x)))), model=model)
    with attached(changed):
        assert gradients(changed(X).sum(), model)


def _inferred(y: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found = F.relu(y)
    return found.sum().item() * torch.ones(())


def test_a_convolution_of_an_expanded_tensor_is_measured():
    conv = nn.Conv2d(8, 4, 3, padding=1)
    model = Calls(lambda x: conv((x[:, :1] * 1.0).expand(-1, 8, -1, -1)), conv=conv)
    with slimgrad.attach(model, min_bytes=64) as session:
        for _ in range(6):  # the first turn is at step 5
            gradients(model(X.clone().requires_grad_()).sum(), model)
        (state,) = session.tuning.states.values()
    assert [entry["own"]["n"] > 0 for entry in state["sites"].values()] == [True]
