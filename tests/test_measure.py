"""What is measured in a run is what is true, and measuring changes nothing."""

from __future__ import annotations

import pytest
import torch
from scenes import Calls, same
from torch import nn
from torch.nn import functional as F

import slimgrad
from slimgrad import measure
from slimgrad.bounds.base import Request, layer_of, site_key
from slimgrad.measure import Meter

ALL = Request(gradients=None, errors=None, travels=None)
AT_ONCE = Request(errors=None, at_once=None)
BOUND = slimgrad.Relative(0.5)


@pytest.fixture(autouse=True)
def _everything_at_once(monkeypatch):
    monkeypatch.setattr(measure, "QUOTA", 100.0)


def grads_of(model: nn.Module, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    (scale * model(x).square().mean()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def energy(grads) -> float:
    return sum(float(grad.double().square().sum()) for grad in grads.values())


def difference(first, second) -> float:
    return energy({name: first[name].double() - second[name].double() for name in first})


def measured(make, x, request=ALL, bound=BOUND, scale=1.0):
    """Return exact, compressed and measured gradients of the same model, and the reading."""
    exact = grads_of(make(), x, scale)
    with slimgrad.attach(model := make(), bound=bound, min_bytes=64):
        compressed = grads_of(model, x, scale)
    with slimgrad.attach(model := make(), bound=bound, min_bytes=64) as session:
        session.tuning.meter.begin(1, request)
        watched = grads_of(model, x, scale)
        reading = session.tuning.meter.end()
    return exact, compressed, watched, reading


def after(layer):
    """Return a maker of a model in which the layer reads a computed tensor, which nobody keeps."""

    def make():
        torch.manual_seed(0)
        return Calls(lambda x: layer_of["layer"](x * layer_of["scale"]), **(layer_of := _members(layer)))

    def _members(layer):
        return {"layer": layer(), "scale": nn.Parameter(torch.ones(()))}

    return make


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (lambda: nn.Conv2d(4, 6, 3, padding=1), (8, 4, 9, 9)),
        (lambda: nn.Conv2d(4, 4, 3, stride=2, groups=4, bias=False), (8, 4, 9, 9)),
        (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (8, 4, 5, 5)),
        (lambda: nn.Conv1d(4, 6, 5, dilation=2), (8, 4, 30)),
        (lambda: nn.Linear(20, 7), (50, 20)),
        (lambda: nn.Linear(20, 7, bias=False), (5, 10, 20)),
    ],
    ids=["conv", "depthwise", "transposed", "dilated 1-D", "linear", "linear of rows"],
)
def test_a_layer_alone_is_measured_to_floating_point_accuracy(layer, size):
    torch.manual_seed(1)
    exact, compressed, _, reading = measured(after(layer), torch.randn(*size))
    weight = {"layer.weight": exact["layer.weight"]}
    true = difference(weight, compressed)
    own = [error for error in reading.errors if error.reach == "own" and error.sites[0][0] == "layer"]
    assert len(own) == 1
    assert own[0].noise2 == pytest.approx(true, rel=1e-4)
    assert true > 0


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(),
        nn.Flatten(), nn.Linear(8 * 64, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 5),
    )  # fmt: skip


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.inner(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(y.transpose(1, 2).flatten(2)).softmax(-1)


def attends():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Attends(), Attends())


@pytest.mark.parametrize(
    ("make", "size"), [(network, (8, 3, 8, 8)), (attends, (4, 24, 16))], ids=["network", "attention"]
)
@pytest.mark.parametrize("rel", [0.05, 0.25])
def test_all_sites_together_are_the_error_of_the_whole_gradient(make, size, rel):
    torch.manual_seed(1)
    exact, compressed, _, reading = measured(make, torch.randn(*size), bound=slimgrad.Relative(rel))
    true = difference(exact, compressed) / energy(exact)
    found = sum(error.noise2 for error in reading.errors if error.reach != "near") / reading.energy
    assert found == pytest.approx(true, rel=0.25)  # errors of several sites also meet, by chance with or against
    assert true > 1e-8  # or nothing was measured


@pytest.mark.parametrize(
    ("make", "size"), [(network, (8, 3, 8, 8)), (attends, (4, 24, 16))], ids=["network", "attention"]
)
@pytest.mark.parametrize("rel", [0.05, 0.25])
def test_all_sites_at_once_are_the_error_of_the_gradient_to_floating_point_accuracy(make, size, rel):
    torch.manual_seed(1)
    exact, compressed, _, reading = measured(make, torch.randn(*size), AT_ONCE, bound=slimgrad.Relative(rel))
    (error,) = reading.errors
    assert (error.reach, set(error.sites)) == ("all", {one.site for one in reading.sites})
    assert error.noise2 == pytest.approx(difference(exact, compressed), rel=1e-3)
    for layer, value in error.layers.items():
        own = {name: grad for name, grad in exact.items() if layer_of(name) == layer}
        assert value == pytest.approx(difference(own, compressed), rel=1e-3)
    assert error.noise2 > 1e-8 * energy(exact)  # or nothing was measured


@pytest.mark.parametrize("is_rough", [False, True], ids=["exact", "rough"])
@pytest.mark.parametrize(
    ("make", "size"), [(network, (8, 3, 8, 8)), (attends, (4, 24, 16))], ids=["network", "attention"]
)
def test_sets_measured_at_once_are_told_apart_as_if_each_were_alone(make, size, is_rough):
    torch.manual_seed(1)
    x = torch.randn(*size)

    def errors_of(*sets):
        request = Request(at_once=tuple(frozenset(one) for one in sets), is_rough=is_rough)
        return measured(make, x, request)[3].errors

    sites = sorted(one.site for one in measured(make, x, AT_ONCE)[3].sites)
    first, second = sites[::2], sites[1::2]
    together, alone = errors_of(first, second), (*errors_of(first), *errors_of(second))
    assert [error.sites for error in alone] == [tuple(first), tuple(second)]
    for one in together:
        other = alone[one.sites == tuple(second)]
        assert one.sites == other.sites
        assert 0 < one.noise2 == pytest.approx(other.noise2, rel=1e-5)
        assert one.layers == pytest.approx(other.layers, rel=1e-4)


def wide_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 48, 3), nn.GELU(), nn.Flatten(),
        nn.Linear(48 * 16, 40), nn.SiLU(), nn.Linear(40, 5),
    )  # fmt: skip


@pytest.mark.parametrize("request_", [AT_ONCE, ALL], ids=["at once", "apart"])
def test_rough_figures_are_those_of_the_exact_ones_on_average(request_):
    torch.manual_seed(1)
    x = torch.randn(8, 3, 8, 8)

    def layers_of(request, step):
        with slimgrad.attach(model := wide_network(), bound=BOUND, min_bytes=64) as session:
            session.tuning.meter.begin(step, request)
            grads_of(model, x)
            found = {}
            for error in session.tuning.meter.end().errors:
                if error.reach != "near":
                    found = {layer: found.get(layer, 0.0) + value for layer, value in {**found, **error.layers}.items()}
            return found

    exact = layers_of(request_, 1)
    rough = [layers_of(request_._replace(is_rough=True), step) for step in range(1, 41)]
    assert exact.keys() == rough[0].keys()
    for layer, true in exact.items():
        values = torch.tensor([one[layer] for one in rough]) / true
        assert float(values.mean()) == pytest.approx(1.0, abs=0.15)
        assert (float(values.std()) > 1e-3) == (layer in ("0", "3", "6"))  # wide ones alone are sketched


@pytest.mark.parametrize("request_", [ALL, AT_ONCE], ids=["apart", "at once"])
def test_a_loss_scale_cancels(request_):
    torch.manual_seed(1)
    x = torch.randn(8, 3, 8, 8)
    shares = []
    for scale in (1.0, 1024.0):
        *_, reading = measured(network, x, request_, scale=scale)
        shares.append({error.sites: error.noise2 / reading.energy for error in reading.errors})
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)


@pytest.mark.parametrize(
    ("make", "size"), [(network, (8, 3, 8, 8)), (attends, (4, 24, 16))], ids=["network", "attention"]
)
@pytest.mark.parametrize("request_", [ALL, AT_ONCE], ids=["apart", "at once"])
def test_gradients_are_those_of_a_run_without_measurement_bit_for_bit(make, size, request_):
    torch.manual_seed(1)
    _, compressed, watched, reading = measured(make, torch.randn(*size), request_)
    assert reading.errors
    assert same(list(compressed.values()), list(watched.values()))


def test_random_state_and_batch_norm_statistics_stay():
    torch.manual_seed(1)
    x = torch.randn(8, 3, 8, 8)
    states, statistics = [], []
    for request in (Request(), ALL, AT_ONCE):
        model = nn.Sequential(*network()[:3], nn.Dropout(0.5), *network()[3:])
        with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
            session.tuning.meter.begin(1, request)
            torch.manual_seed(2)
            grads_of(model, x)
            session.tuning.meter.end()
        states.append(torch.get_rng_state())
        statistics.append(model[1].running_var.clone())
    assert all(torch.equal(states[0], other) for other in states)
    assert all(torch.equal(statistics[0], other) for other in statistics)


def test_only_what_is_asked_for_is_kept_and_measured():
    torch.manual_seed(1)
    x, site = torch.randn(8, 3, 8, 8), ("3", 1)
    *_, reading = measured(network, x, Request(errors=frozenset({("2", 1)})))
    assert [error.sites for error in reading.errors] == [(("2", 1),)]
    assert site_key(site) == "3#1"
    assert all(not one.readers for one in reading.sites)
    assert len(reading.sites) > 4  # every coded site is listed


def test_what_is_near_is_part_of_what_is_far_and_told_apart_by_site():
    *_, reading = measured(network, torch.randn(8, 3, 8, 8))
    near = {error.sites[0][0]: error for error in reading.errors if error.reach == "near"}
    (far,) = (error for error in reading.errors if error.reach == "far")
    assert set(near["1"].layers) == {"0"}  # a batch norm's error ends in the convolution before it
    assert set(near["8"].layers) == {"7"}  # that of the last norm in the linear layer, though far goes on
    assert set().union(*(error.layers for error in near.values())) <= set(far.layers)


def test_an_adaptive_optimizer_gives_layers_the_weight_of_their_parameters():
    torch.manual_seed(0)
    model = network()
    for optimizer, share in (
        (torch.optim.SGD(model.parameters(), lr=0.1), None),
        (torch.optim.AdamW(model.parameters()), 8),
    ):
        meter = Meter(lambda: dict(model.named_parameters()))
        meter.optimizer = optimizer
        meter.begin(1, ALL)
        result = model(torch.randn(4, 3, 8, 8))
        meter.watch(result)
        result.square().sum().backward()
        weights = meter.end().weights
        assert (not weights) == (share is None)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights["3"] / weights["0"] == pytest.approx((8 * 8 * 9 + 8) / (8 * 3 * 9 + 8))


def test_a_look_says_nothing_of_sites_that_it_does_not_name():
    sites = frozenset({("2", 1)})
    *_, reading = measured(network, torch.randn(8, 3, 8, 8), Request(errors=sites, is_look=True))
    assert {one.site for one in reading.sites} == sites
    assert len(reading.layers) > 4  # energies are those of all layers


def test_errors_are_followed_only_where_asked():
    x = torch.randn(8, 3, 8, 8)
    *_, own = measured(network, x, Request(errors=None))
    assert not any(error.reach == "far" for error in own.errors)
    *_, all_of_it = measured(network, x, ALL)
    assert sum(error.reach == "far" for error in all_of_it.errors) == 1


def found_by(request: Request, n_batches: int = 40) -> dict[str, float]:
    """Return the energies of errors by how far they reach, over some batches."""
    sums: dict[str, float] = {}
    torch.manual_seed(1)
    for x in torch.randn(n_batches, 16, 3, 8, 8):
        *_, reading = measured(network, x, request)
        for error in reading.errors:
            sums[error.reach] = sums.get(error.reach, 0.0) + error.noise2
    return sums


def test_what_travels_is_found_by_what_codes_left_out_nearly_as_by_the_originals():
    sites = frozenset({("1", 1), ("4", 1)})
    exact, found = found_by(Request(errors=sites, travels=sites)), found_by(Request(travels=sites))
    assert found["far"] == pytest.approx(exact["far"], rel=0.25)
    assert found["far"] != exact["far"]  # or it was the originals


def test_a_look_tells_what_is_own_and_near_and_follows_no_farther():
    sites = frozenset({("1", 1)})
    exact, look = found_by(Request(errors=sites)), found_by(Request(looks=sites))
    assert look.keys() == {"own", "near"}
    assert look == pytest.approx(exact, rel=0.25)
    assert look != exact  # or it was the original


def test_the_quota_bounds_what_is_kept(monkeypatch):
    monkeypatch.setattr(measure, "QUOTA", 1 / 16)
    *_, reading = measured(network, torch.randn(8, 3, 8, 8))
    kept = {site for error in reading.errors for site in error.sites}
    numel = {one.site: one.numel for one in reading.sites}
    assert kept
    first = next(iter(one.site for one in reading.sites if one.site in kept))
    assert sum(numel[site] for site in kept - {first}) <= sum(numel.values()) / 16


def test_a_weight_used_twice_gets_the_sum_of_its_errors():
    def make():
        torch.manual_seed(0)
        layer = nn.Linear(16, 16)
        return Calls(lambda x: layer(torch.tanh(layer(x))), layer=layer)

    x = torch.randn(64, 16) * 2
    exact, compressed, _, reading = measured(make, x)
    found = sum(error.noise2 for error in reading.errors if error.reach != "near")
    assert found == pytest.approx(difference(exact, compressed), rel=0.3)


def test_a_gradient_that_overflows_gives_no_reading():
    *_, reading = measured(network, torch.randn(8, 3, 8, 8), scale=float("inf"))
    assert reading is None


def test_the_scale_is_what_lies_between_backward_and_optimizer():
    model, x = network(), torch.randn(8, 3, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with slimgrad.attach(model, bound=BOUND, min_bytes=64) as session:
        session.tuning.meter.begin(1, ALL)
        grads_of(model, x, scale=64.0)
        for parameter in model.parameters():
            parameter.grad /= 64.0
        optimizer.step()
        assert session.tuning.meter.end().scale == pytest.approx(64.0)


@pytest.mark.parametrize(("kind", "name"), [(torch.optim.SGD, "momentum_buffer"), (torch.optim.Adam, "exp_avg")])
def test_momentum_is_that_of_the_optimizer(kind, name):
    model, x = network(), torch.randn(8, 3, 8, 8)
    optimizer = kind(model.parameters(), lr=1e-3, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    with slimgrad.attach(model, bound=BOUND, min_bytes=64, optimizer=optimizer) as session:
        grads_of(model, x)
        optimizer.step()
        session.tuning.meter.begin(2, Request(gradients=None))
        grads_of(model, x)
        reading = session.tuning.meter.end()
    (reader,) = next(one for one in reading.sites if one.site == ("2", 1)).readers
    held = optimizer.state[model[3].weight][name]
    bias = 1 - 0.9 if kind is torch.optim.Adam else 1.0  # of a moment that started at zero, one step ago
    assert reader.momentum == pytest.approx(float(held.abs().mean()) / bias)


def test_behind_queries_and_keys_a_look_goes_as_far_as_the_norm_before_their_projection():
    x = torch.randn(4, 24, 16)
    *_, everything = measured(attends, x)
    sites = {one.site: one.role for one in everything.sites if one.site[0].startswith("2")}
    *_, reading = measured(attends, x, Request(looks=frozenset(sites), is_look=True))
    near = {sites[error.sites[0]]: set(error.layers) for error in reading.errors if error.reach == "near"}
    assert near["attention query, key"] == {"2.inner", "2.norm"}
    assert near["layer norm input"] == {"1.outer", "0"}
