"""Measurement in graphs and loops that are not the usual ones: shared storages, frozen layers, autograd.grad."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from scenes import Calls
from torch import nn
from torch.nn import functional as F

import slimgrad
from slimgrad import measure
from slimgrad.bounds.base import Request
from slimgrad.local_errors import read_by
from slimgrad.saved import Stored

ALL = Request(gradients=None, errors=None, travels=None)
AT_ONCE = Request(gradients=None, errors=None, at_once=None)
BOUND = slimgrad.Relative(0.5)


@pytest.fixture
def _with_originals(monkeypatch):
    monkeypatch.setattr(measure, "QUOTA", 100.0)  # else finer codes stand in for most of them


def gradient_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    model(x).backward()
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    return parameter.grad.clone()


def products(loss):
    """Return a maker of a model that computes a loss of h, a tensor that nobody keeps, with one weight before it."""

    def make():
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(12, 12))
        return Calls(lambda x: loss(torch.tanh(x @ weight) * 1.5), weight=weight)

    return make


@pytest.mark.parametrize(
    "loss",
    [
        lambda h: (h @ h.t()).square().sum(),
        lambda h: (h.t() @ h).square().sum(),
        lambda h: torch.addmm(h.new_zeros(12, 12), h.t(), h).square().sum(),
        lambda h: (h.t()[None] @ h[None]).square().sum(),
        lambda h: (h.t() @ h).square().sum() + (h.t()[None] @ h[None]).square().sum(),
    ],
    ids=["x @ x.T", "x.T @ x", "addmm", "batched", "two readers, one with a rule of its own"],
)
@pytest.mark.parametrize(("request_", "within"), [(ALL, 0.2), (AT_ONCE, 1e-3)], ids=["apart", "at once"])
@pytest.mark.usefixtures("_with_originals")
def test_a_storage_that_a_product_reads_twice_is_measured_whole(loss, request_, within):
    torch.manual_seed(1)
    x, make = torch.randn(40, 12), products(loss)
    exact = gradient_of(make(), x)
    with slimgrad.attach(model := make(), bound=BOUND, min_bytes=64, rules={}) as session:
        session.tuning.meter.begin(1, request_)
        compressed = gradient_of(model, x)
        reading = session.tuning.meter.end()
    found = sum(error.noise2 for error in reading.errors if error.reach in ("far", "all"))
    assert found == pytest.approx(float((compressed - exact).square().sum()), rel=within)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.is_open = nn.Linear(64, 64), False

    def forward(self, x):
        h = self.layer(x)
        y = F.silu(h)
        return (y * h if self.is_open else y).square().mean()


@pytest.mark.parametrize("request_", [Request(), ALL, AT_ONCE], ids=["not measured", "apart", "at once"])
def test_a_tensor_that_is_coded_first_and_then_kept_is_read_as_it_was(request_):
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(64, 64)
    model.is_open = True
    exact = torch.autograd.grad(model(x), list(model.parameters()))
    with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, request_)
        found = torch.autograd.grad(model(x), list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("layer", [lambda: nn.Conv2d(4, 4, 3), lambda: nn.Linear(8, 4)], ids=["conv", "linear"])
def test_a_gradient_that_is_not_there_is_no_error(layer):
    reads = layer()
    scale = nn.Parameter(torch.ones(()))
    model = Calls(lambda x: NoGradient.apply(reads(x * scale)).sum() + (x * scale).square().sum(), r=reads, s=scale)
    x = torch.randn(8, 4, 8, 8)
    with slimgrad.attach(model, min_bytes=64) as session:
        for request in (ALL, AT_ONCE):
            session.tuning.meter.begin(1, request)
            model(x).backward()
            session.tuning.meter.end()
    assert scale.grad is not None
    assert all(parameter.grad is None for parameter in reads.parameters())


def test_a_frozen_convolution_is_passed_by():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model[2].requires_grad_(False)
    x = torch.randn(8, 3, 12, 12)
    with slimgrad.attach(model, min_bytes=64) as session:
        for _ in range(6):
            model(x).square().sum().backward()
        state = session.state_dict()["bounds"]
    assert all(entry["far"]["n"] for bound in state.values() for entry in bound["sites"].values() if entry["travels"])


@pytest.mark.parametrize("bound", [slimgrad.Noise(0.05), slimgrad.AcGc()], ids=repr)
def test_complex_parameters_count_with_both_parts(bound):
    torch.manual_seed(0)
    weights = nn.Parameter(torch.randn(33, dtype=torch.cfloat))
    first = nn.Linear(64, 64)

    def forward(x):
        return torch.fft.irfft(torch.fft.rfft(torch.tanh(first(x))) * weights, n=64).square().sum()

    model, x = Calls(forward, weights=weights, first=first), torch.randn(32, 64)
    with slimgrad.attach(model, bound=bound, min_bytes=64) as session:
        for _ in range(7):
            model.zero_grad()
            model(x).backward()
        audit = session.audit(lambda: model(x))
        assert audit.parameters["weights"].energy == pytest.approx(float(weights.grad.abs().square().sum()), rel=0.2)


@dataclass
class Output:
    loss: torch.Tensor
    name: str = "a loss"


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(1))


def backward(model, x):
    model(x).square().mean().backward()


def in_recording(model, x):
    with model.session.recording():
        loss = model(x).square().mean()
    loss.backward()


def of_a_dataclass(model, x):
    inner = model.forward
    model.forward = lambda x: Output(inner(x).square().mean())
    try:
        model(x).loss.backward()
    finally:
        del model.forward


def by_autograd_grad(model, x):
    torch.autograd.grad(model(x).square().mean(), list(model.parameters()))


@pytest.mark.parametrize("step", [backward, in_recording, of_a_dataclass, by_autograd_grad])
def test_statistics_arrive_however_a_step_is_written(step):
    model, x = network(), torch.randn(8, 3, 12, 12)
    with slimgrad.attach(model, bound=slimgrad.Noise(0.001), min_bytes=64) as session:
        object.__setattr__(model, "session", session)
        for _ in range(25):
            step(model, x)
        (state,) = session.state_dict()["bounds"].values()
        assert state["sites"]
        assert all(entry["own"]["n"] for entry in state["sites"].values() if entry["rel"])
        assert session.audit(lambda: model(x).square().mean()).noise <= 0.0015


@pytest.mark.parametrize("request_", [ALL, AT_ONCE], ids=["apart", "at once"])
def test_gradients_asked_for_twice_are_the_same_share_of_error(request_):
    model, x = network(), torch.randn(8, 3, 12, 12)
    readings = []
    for is_twice in (False, True):
        with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
            session.tuning.meter.begin(1, request_)
            loss = model(x).square().mean()
            if is_twice:
                torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            loss.backward()
            readings.append(session.tuning.meter.end())
    shares = [{error.sites: error.noise2 / one.energy for error in one.errors} for one in readings]
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)


@pytest.mark.parametrize("frozen", [0, 2], ids=["its weight alone", "a layer between"])
@pytest.mark.usefixtures("_with_originals")
def test_measured_at_once_a_frozen_layer_passes_errors_on(frozen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
    model[frozen].requires_grad_(False)
    x, grads = torch.randn(8, 3, 16, 16), []
    for bound in (slimgrad.Exact(), BOUND):
        model.zero_grad(set_to_none=True)
        with slimgrad.attach(model, bound=bound, min_bytes=64) as session:
            session.tuning.meter.begin(1, AT_ONCE)
            model(x).square().mean().backward()
            reading = session.tuning.meter.end()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    true = sum(float((grad - grads[1][name]).double().square().sum()) for name, grad in grads[0].items())
    (error,) = reading.errors
    assert error.noise2 == pytest.approx(true, rel=1e-3)
    assert true > 0


ROUGH = {
    "at once": Request(errors=None, at_once=None, is_rough=True),
    "apart": Request(errors=None, travels=None, is_rough=True),
}


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 48, 3), nn.GELU(), nn.Flatten(),
        nn.Linear(48 * 16, 40), nn.SiLU(), nn.Linear(40, 5),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ROUGH)
@pytest.mark.parametrize("is_rough", [False, True])
@pytest.mark.usefixtures("_with_originals")
def test_a_backward_for_the_input_alone_leaves_no_errors_behind(kind, is_rough):
    found = []
    for comes_before in (False, True):
        with slimgrad.attach(model := wide(), bound=BOUND, min_bytes=64) as session:
            session.tuning.meter.begin(1, ROUGH[kind]._replace(is_rough=is_rough))
            torch.manual_seed(1)
            if comes_before:
                x = torch.randn(8, 3, 8, 8, requires_grad=True)
                torch.autograd.grad((100.0 * model(x)).square().mean(), x)
            torch.manual_seed(2)
            model(torch.randn(8, 3, 8, 8)).square().mean().backward()
            found.append(session.tuning.meter.end())
    for layer in ("2", "5", "7"):
        alone, after = (sum(error.layers.get(layer, 0.0) for error in one.errors) for one in found)
        assert 0 < after == pytest.approx(alone)


@pytest.mark.parametrize("kind", ROUGH)
@pytest.mark.usefixtures("_with_originals")
def test_a_backward_for_one_bias_alone_may_be_measured(kind):
    with slimgrad.attach(model := wide(), bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ROUGH[kind])
        model(torch.randn(8, 3, 8, 8)).square().mean().backward(inputs=[model[0].bias])
        assert session.tuning.meter.end().layers.keys() == {"0"}


@pytest.mark.parametrize("kind", ROUGH)
@pytest.mark.usefixtures("_with_originals")
def test_a_backward_for_the_last_layers_alone_may_be_measured_behind_views(kind):
    """A linear layer of rows has views around its product, and they return nothing where nobody asks."""
    with slimgrad.attach(model := rows(), bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ROUGH[kind])
        model(torch.randn(8, 9, 32)).square().mean().backward(inputs=list(model[4:].parameters()))
        assert session.tuning.meter.end().layers.keys() == {"4", "6"}


def rows() -> nn.Sequential:
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(32, 4))


@pytest.mark.parametrize("kind", [*ROUGH, "sets"])
def test_two_sessions_measure_in_one_graph_as_each_would_alone(kind):
    """A generator and a discriminator, say, whose modules have the same paths."""
    first, second = frozenset({("1", 1), ("3", 1)}), frozenset({("2", 1), ("4", 1)})
    request = ROUGH.get(kind, Request(at_once=(first, second)))
    torch.manual_seed(0)
    models, x = (rows(), rows()[:6]), torch.randn(8, 9, 32)

    def errors_when(*measuring):
        sessions = [slimgrad.attach(model, bound=BOUND, min_bytes=64) for model in models]
        for number in measuring:
            sessions[number].tuning.meter.begin(1, request)
        models[0](models[1](x)).square().mean().backward()
        readings = {number: sessions[number].tuning.meter.end() for number in measuring}
        for session in sessions:
            session.detach()
        return {
            number: {(error.sites, error.reach): error for error in readings[number].errors} for number in measuring
        }

    together = errors_when(0, 1)
    for number, found in together.items():
        alone = errors_when(number)[number]
        assert found.keys() == alone.keys()
        assert sum(error.noise2 for error in alone.values()) > 0
        for key, error in alone.items():
            assert found[key].noise2 == pytest.approx(error.noise2, rel=1e-4)


@pytest.mark.parametrize("kind", ROUGH)
@pytest.mark.usefixtures("_with_originals")
def test_a_backward_that_fails_leaves_nothing_alive(kind):
    def n_stored():
        gc.collect()
        return sum(type(one) is Stored for one in gc.get_objects())

    before = n_stored()
    with slimgrad.attach(model := wide(), bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ROUGH[kind])
        loss = model(torch.randn(8, 3, 8, 8)).square().mean()
        assert n_stored() > before
        with torch.no_grad():
            model[5].weight.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        del loss
        assert n_stored() == before


@pytest.mark.parametrize("kind", ROUGH)
@pytest.mark.usefixtures("_with_originals")
def test_a_table_with_sparse_gradients_may_be_a_weight_as_well(kind):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.inner = nn.Embedding(100, 16, sparse=True), nn.Linear(16, 16)

        def forward(self, x):
            return F.linear(F.gelu(self.inner(self.table(x))), self.table.weight)

    torch.manual_seed(0)
    with slimgrad.attach(model := Tied(), bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ROUGH[kind])
        model(torch.randint(100, (40,))).square().mean().backward()
        reading = session.tuning.meter.end()
    assert sum(error.layers.get("table", 0.0) for error in reading.errors) > 0


def test_hooks_of_parameters_go_and_those_of_others_stay():
    model, seen = wide(), []
    model[0].weight.register_hook(lambda grad: seen.append("others'"))
    with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
        for step in range(1, 4):
            session.tuning.meter.begin(step, ALL if step < 3 else Request())
            model(torch.randn(8, 3, 8, 8)).square().mean().backward()
            assert (session.tuning.meter.end() is not None) == (step < 3)
    first, *others = model.parameters()
    assert len(first._backward_hooks) == 1
    assert all(parameter._backward_hooks is None for parameter in others)
    assert seen == ["others'"] * 3


@pytest.mark.usefixtures("_with_originals")
def test_originals_go_with_the_graph():
    model, x = wide(), torch.randn(8, 3, 8, 8)
    with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ALL)
        result = model(x)
        storages = []

        def collect(node, seen):
            if node is None or node in seen:
                return
            seen.add(node)
            for stored, _ in read_by(node, session.tuning.meter._streams):
                if stored.probe.original is not None:
                    storages.append(weakref.ref(stored.probe.original.untyped_storage()))
            for following, _ in node.next_functions:
                collect(following, seen)

        collect(result.grad_fn, set())
        assert storages
        del result
        gc.collect()
        assert not any(probe() for probe in storages)
        assert session.tuning.meter.end() is None  # no gradient has arrived
