"""What can be made from a coded input is not stored: values follow from it, signs are kept, and errors are measured."""

from __future__ import annotations

import gc

import pytest
import torch
from derived_scenes import Promise, X, attached, chain, saved_by, stored_at
from scenes import Calls, gradients
from torch import nn
from torch.nn import functional as F

from slimgrad import ChangedInPlace, Compress, Noise, Relative, measure
from slimgrad.bounds.base import Request

ACTIVATIONS = [nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.ReLU6(), nn.Hardtanh(-0.5, 1.0), nn.SiLU(),
               nn.Hardswish(), nn.GELU(), nn.GELU("tanh"), nn.Identity()]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
def test_a_convolution_reads_what_its_norm_makes_of_the_coded_input(activation, layout):
    model, x = chain(activation).to(memory_format=layout), X.to(memory_format=layout)
    with attached(model) as session:
        result = model(x)
        restored = saved_by(result, "NativeBatchNorm", "input")
        node_mean, node_std = (saved_by(result, "NativeBatchNorm", f"result{i}") for i in (1, 2))
        with session.paused(), torch.no_grad():
            affine = (restored - node_mean.view(-1, 1, 1)) * (node_std * model[1].weight).view(-1, 1, 1)
            expected = activation(affine + model[1].bias.view(-1, 1, 1))
            assert float((restored - model[0](x)).abs().max()) > 0.05
        torch.testing.assert_close(saved_by(result, "Convolution", "input"), expected, rtol=1e-4, atol=1e-5)
        gradients(result.square().sum(), model)
        stored = stored_at(session)
        assert stored["1"] > 0 == sum(n for path, n in stored.items() if path not in ("0", "1") and path != "2")
        flags = isinstance(activation, (nn.ReLU6, nn.Hardtanh))  # between two limits: a bit each
        assert stored.get("2", 0) == pytest.approx(4 * 8 * 144 / 8 if flags else 0, abs=64)


@pytest.mark.parametrize(
    "make", [lambda: nn.LayerNorm(12), lambda: nn.GroupNorm(4, 8)], ids=["layer norm", "group norm"]
)
def test_other_norms_are_made_again_from_their_coded_input(make):
    with attached(model := chain(nn.SiLU(), norm=make())) as session:
        result = model(X)
        kind = "NativeLayerNorm" if isinstance(model[1], nn.LayerNorm) else "NativeGroupNorm"
        with session.paused(), torch.no_grad():
            expected = F.silu(model[1](saved_by(result, kind, "input")))
        torch.testing.assert_close(saved_by(result, "Convolution", "input"), expected, rtol=1e-4, atol=1e-5)
        gradients(result.sum(), model)
        assert [path for path, n in stored_at(session).items() if n] == ["1"]


@pytest.mark.parametrize("rel", [0.05, 0.4, 1.0, 2.0])
@pytest.mark.parametrize("inplace", [False, True])
def test_relu_lets_through_what_it_did_in_forward(rel, inplace):
    model = chain(nn.ReLU(inplace))
    with torch.no_grad():
        model[1].weight[0] = 0.0  # a channel that is constant has no edge
        model[1].bias[1] = 40.0  # ... and here it lies beyond all values
    seen = []
    model[2].register_forward_hook(lambda module, args, y: seen.append(y.detach().clone()))
    with attached(model, Promise(rel)):
        result = model(X)
        let_through = saved_by(result, "Relu", "result") > 0
        read = saved_by(result, "Convolution", "input")
    assert torch.equal(let_through, seen[0] > 0)
    assert torch.equal(read > 0, seen[0] > 0)
    assert 0.2 < float(let_through.float().mean()) < 0.9


def test_a_channel_that_is_dead_before_its_norm_adds_no_error():
    model = chain(nn.ReLU())
    with torch.no_grad():
        model[0].weight[2] = model[0].bias[2] = 0.0
    with attached(model, Promise(0.4)):
        weight, _ = gradients(model(X).square().sum(), model[1])
    assert float(weight[2]) == 0.0  # any other value would be an error times 1 / sqrt(eps) of the norm


def test_what_somebody_needs_exactly_is_exact():
    model = chain(nn.ReLU())
    both = Calls(lambda x: model[3](y := model[:3](x)).sum() + y.sinh().sum(), model=model)
    with attached(both):
        result = both(X)
        exact = saved_by(result, "Sinh", "self")
    with torch.no_grad():
        assert torch.equal(exact, model[:3](X))


def test_changes_in_place_are_seen():
    model = chain(nn.ReLU(), nn.Identity())
    changed = Calls(lambda x: (model[4](y := model[:3](x)).sum(), y.add_(1.0))[0], model=model)
    with attached(changed), pytest.raises(ChangedInPlace):
        changed(X).backward()


def test_parameters_of_a_norm_may_change_where_plain_torch_does_not_mind():
    with attached(model := chain(nn.ReLU())):
        result = model(X)
        before = saved_by(result, "Convolution", "input").clone()
        with torch.no_grad():
            model[1].bias.add_(1.0)  # plain torch would not mind: the bias is not saved
        assert torch.equal(saved_by(result, "Convolution", "input"), before)
    model = chain(norm=nn.LayerNorm(12))
    probed = Calls(lambda x: model[2](model[1](model[0](x)).detach()), model=model)
    with attached(probed):
        result = probed(X)
        with torch.no_grad():
            model[1].bias.add_(1.0)
        assert len(gradients(result.sum(), model[2])) == 2


def test_graphs_may_be_run_twice_and_leave_nothing():
    kept = []
    model = chain(nn.ReLU())
    model[2].register_forward_hook(lambda module, args, y: kept.append(y))  # it outlives the graph
    with attached(model) as session:
        loss = model(X).square().sum()
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(model.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        del loss
        kept[0] = kept[0].detach()
        gc.collect()
        assert session.kept_bytes() == 0


def test_a_second_order_gradient_reads_the_same_values():
    model, x = chain(nn.SiLU()), X.clone().requires_grad_()
    with attached(model, Promise(0.01)):
        (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        second = gradients(first.square().sum(), model[0])
    (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    exact = gradients(first.square().sum(), model[0])
    assert float((second[0] - exact[0]).norm() / exact[0].norm()) < 0.05


@pytest.mark.parametrize("request_", [Request(errors=None, travels=None), Request(errors=None, at_once=None)])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU()], ids=str)
def test_errors_are_measured_where_they_arrive(activation, request_, monkeypatch):
    monkeypatch.setattr(measure, "QUOTA", 100.0)

    def grads(model):
        return dict(
            zip((n for n, _ in model.named_parameters()), gradients(model(X).square().sum(), model), strict=True)
        )

    exact = grads(chain(activation))
    with attached(model := chain(activation), Promise(0.02)) as session:  # products of two errors are left out
        compressed = grads(model)
        session.tuning.meter.begin(1, request_)
        loss = model(X).square().sum()
        watched = gradients(loss, model)
        reading = session.tuning.meter.end()
    assert all(torch.equal(a, b) for a, b in zip(watched, compressed.values(), strict=True))
    assert [one.site[0] for one in reading.sites] == ["1"]
    found: dict[str, float] = {}
    for error in reading.errors:
        if error.reach != "near":
            for layer, value in error.layers.items():
                found[layer] = found.get(layer, 0.0) + value
    for layer in ("0", "1", "3"):
        true = sum(float((exact[n] - compressed[n]).double().square().sum()) for n in exact if n.startswith(layer))
        rel = 0.02 if layer != "1" else 0.1  # which two parts of one error reach, and what they have in common
        assert found[layer] == pytest.approx(true, rel=rel), layer
        assert true > 0


def test_values_that_change_their_places_are_not_derived():
    torch.manual_seed(0)
    norm, last = nn.LayerNorm(16), nn.Linear(16, 4)
    turned = Calls(lambda x: last(F.silu(norm((x * 1.0).transpose(1, 2)))), norm=norm, last=last)
    x = torch.randn(8, 16, 16, requires_grad=True)
    turned_between = Calls(lambda x: last(norm(F.silu(x * 1.0).transpose(1, 2))), norm=norm, last=last)
    for model in (turned, turned_between):
        with attached(model, Promise(0.01)):
            slim = gradients(model(x).square().sum(), x, model)
        plain = gradients(model(x).square().sum(), x, model)
        for ours, exact in zip(slim, plain, strict=True):
            assert float((ours - exact).norm() / exact.norm()) < 0.05


def test_part_of_a_storage_is_not_taken_for_the_whole():
    model = chain(nn.ReLU())
    half = Calls(lambda x: model[3](F.relu(model[1](model[0](x))[:2])), model=model)
    with attached(half, Promise(0.01)):
        slim = gradients(half(X).square().sum(), model[0].weight, model[1], model[3])
    plain = gradients(half(X).square().sum(), model[0].weight, model[1], model[3])
    for ours, exact in zip(slim, plain, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.05


def test_flags_that_are_stored_and_values_that_are_derived_count_once():
    model = chain(nn.Identity())
    both = Calls(lambda x: model[3](y := model[1](model[0](x))).sum() + F.hardtanh(y).sum(), model=model)
    turned = Calls(lambda x: F.hardtanh(y := model[1](model[0](x))).sum() + model[3](y).sum(), model=model)
    for order in (both, turned):
        with attached(order) as session:
            gradients(order(X), model)
            total = session.report().snapshot.total
        nbytes = 4 * 8 * 144 * 4
        assert total.coded_in == 2 * nbytes  # what the norm reads, and what it returns
        assert total.coded_out > nbytes / 32


FLAGS = {
    "of a result": lambda y: F.relu(y).clamp(max=0.5),
    "before": lambda y: F.hardtanh(y) + F.leaky_relu(y),
    "after": lambda y: F.leaky_relu(y) + F.hardtanh(y),
    "of what is pooled": lambda y: F.max_pool2d(r := F.relu(y), 2).sum() + r.clamp(max=0.5),
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
@pytest.mark.parametrize("bound", [Promise(0.001), Noise(0.05)], ids=["fixed", "noise"])
def test_flags_of_other_functions_are_not_taken_for_signs(flags, bound):
    model = chain()
    both = Calls(lambda x: flags(model[1](model[0](x))), model=model)
    with attached(both, bound):
        for _ in range(7):
            slim = gradients(both(X).square().sum(), model[0].weight, model[1])
    for ours, exact in zip(slim, gradients(both(X).square().sum(), model[0].weight, model[1]), strict=True):
        assert float((ours - exact).norm() / exact.norm()) < (0.01 if bound == Promise(0.001) else 0.3)


@pytest.mark.parametrize(
    "second", [lambda: nn.BatchNorm2d(8), lambda: nn.LayerNorm(12)], ids=["batch norm", "layer norm"]
)
@pytest.mark.parametrize("rules", [{}, {"3": Relative(0.01)}], ids=["one bound", "another for the second norm"])
def test_a_norm_has_its_own_input_stored_and_signs_are_kept(second, rules):
    model = chain(nn.ReLU(), second())

    def errors(policy):
        with attached(model, Promise(0.01), rules=rules, policy=policy) as session:
            result = model(X)
            with session.paused(), torch.no_grad():
                assert torch.equal(saved_by(result, "Relu", "result") > 0, model[:3](X) > 0)
            slim = gradients(result.square().sum(), model[0].weight, model[1], model[4])
        plain = gradients(model(X).square().sum(), model[0].weight, model[1], model[4])
        return [float((ours - exact).norm() / exact.norm()) for ours, exact in zip(slim, plain, strict=True)]

    for ours, stored in zip(errors(Compress()), errors(Compress(derive=False)), strict=True):
        assert ours < 1.5 * stored + 0.02


@pytest.mark.parametrize(("scale", "value"), [(0.0, 0.0), (0.0, 0.3), (1.0, 1e4)], ids=["zero", "constant", "far"])
def test_where_rounding_decides_signs_they_are_stored(scale, value):
    model = chain(nn.ReLU())
    with torch.no_grad():
        model[0].weight.mul_(scale)
        model[0].bias.fill_(value)
        model[1].bias.zero_()
    with attached(model):
        result = model(X)
        let_through = saved_by(result, "Relu", "result") > 0
    with torch.no_grad():
        assert torch.equal(let_through, model[:3](X) > 0)


def test_a_tensor_with_a_counter_of_its_own_is_not_taken_for_another():
    model = chain()
    scaled = Calls(lambda x: model[2](F.relu_(model[1](model[0](x))).data.mul_(3.0)), model=model)
    with attached(scaled, Promise(0.001)):
        slim = gradients(scaled(X).square().sum(), model[2])
    for ours, exact in zip(slim, gradients(scaled(X).square().sum(), model[2]), strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.01
