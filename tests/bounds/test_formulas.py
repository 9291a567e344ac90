"""Each formula against the variance that independent noise really causes, at every map size and kind of layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from slimgrad.bounds import formulas
from slimgrad.bounds.base import Reader
from slimgrad.readers import read

EPS = 0.01
VAR = formulas.variance(EPS)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def measured(gradient: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, n: int) -> float:
    """Return the mean energy of gradient(x + uniform noise) - gradient(x) over n draws."""
    generator = torch.Generator().manual_seed(1)
    exact, total = gradient(x), 0.0
    for _ in range(n):
        noise = (torch.rand(x.shape, generator=generator, dtype=x.dtype) * 2 - 1) * EPS
        total += float((gradient(x + torch.where(x == 0, 0.0, noise)) - exact).square().sum())
    return total / n


def reader_of(result: torch.Tensor, out_grad: torch.Tensor, size: torch.Size) -> Reader:
    """Return the reader that a backward with this gradient shows."""
    found = []
    node = result.grad_fn
    node.register_hook(lambda inputs, outputs: found.append(read(node, size, inputs, outputs, {})))
    result.backward(out_grad)
    return found[0][0]


CONVS = {  # channels in and out, size, options
    "3x3": (6, 8, (9, 9), {"kernel_size": 3, "padding": 1}),
    "3x3 on one place": (6, 8, (1, 1), {"kernel_size": 3, "padding": 1}),
    "3x3 on two": (6, 8, (2, 2), {"kernel_size": 3, "padding": 1}),
    "3x3 without padding": (6, 8, (5, 7), {"kernel_size": 3}),
    "1x1, stride 2": (6, 8, (7, 7), {"kernel_size": 1, "stride": 2}),
    "7x7, stride 2": (3, 8, (11, 11), {"kernel_size": 7, "stride": 2, "padding": 3}),
    "dilated": (4, 6, (8, 8), {"kernel_size": 3, "padding": 2, "dilation": 2}),
    "groups": (6, 9, (6, 6), {"kernel_size": 3, "padding": 1, "groups": 3}),
    "depthwise": (8, 8, (6, 6), {"kernel_size": 3, "padding": 1, "groups": 8, "stride": 2}),
    "1-D": (5, 7, (13,), {"kernel_size": 5, "padding": 2, "stride": 2}),
    "3-D": (3, 4, (4, 5, 3), {"kernel_size": (3, 1, 3), "padding": (1, 0, 1)}),
}


def layer_of(kind: str, n_in: int, n_out: int, size: tuple[int, ...], options: dict) -> nn.Module:
    torch.manual_seed(0)
    return getattr(nn, f"{kind}{len(size)}d")(n_in, n_out, **options).double()


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("name", CONVS)
def test_conv(kind, name):
    layer = layer_of(kind, *CONVS[name])
    n_in, _, size, _ = CONVS[name]
    x = F.relu(normal(6, n_in, *size))
    out_grad = normal(*layer(x).shape, seed=2)
    reader = reader_of(layer(x), out_grad, x.shape)
    density = float((x != 0).double().mean())

    def weight_grad(values):
        return torch.autograd.grad(layer(values), layer.weight, out_grad)[0]

    expected = formulas.conv(reader, VAR, density)
    n = 40 if reader.taps * n_in > 100 else 150
    assert measured(weight_grad, x, n) == pytest.approx(expected, rel=0.1)


def test_linear():
    layer = nn.Linear(20, 12).double()
    x, out_grad = normal(30, 20), normal(30, 12, seed=2)
    reader = reader_of(layer(x), out_grad, x.shape)
    assert (reader.function, reader.in_channels, reader.out_channels) == ("linear", 20, 12)
    gradient = lambda values: torch.autograd.grad(layer(values), layer.weight, out_grad)[0]  # noqa: E731
    assert measured(gradient, x, 60) == pytest.approx(formulas.conv(reader, VAR), rel=0.1)


def test_a_mean_error_adds_what_conv_mean_says():
    layer = nn.Conv2d(4, 6, 3, bias=False).double()
    x, out_grad = normal(3, 4, 8, 8), normal(3, 6, 6, 6, seed=2) + 0.3
    reader = reader_of(layer(x), out_grad, x.shape)
    gradient = lambda values: torch.autograd.grad(layer(values), layer.weight, out_grad)[0]  # noqa: E731
    added = float((gradient(x + 0.02) - gradient(x)).square().sum())
    bias_grad2 = float(out_grad.sum((0, 2, 3)).square().sum())
    assert added == pytest.approx(formulas.conv_mean(reader, 0.02, bias_grad2), rel=1e-9)


def test_the_gradient_of_a_bias_has_no_error():
    layer = nn.Conv2d(4, 6, 3, padding=1).double()
    x, out_grad = normal(3, 4, 8, 8), normal(3, 6, 8, 8, seed=2)
    gradient = lambda values: torch.autograd.grad(layer(values), layer.bias, out_grad)[0]  # noqa: E731
    assert measured(gradient, x, 3) == 0.0


def stored_norm(x, sets, mean, inv_std, h, subtracts_mean=True):
    """Return gX as a norm computes it from a stored input and exact statistics; `sets` brings one set per row."""
    rows, grads = sets(x), sets(h)
    xhat = (rows - mean) * inv_std
    grads = grads - (grads.mean(1, keepdim=True) if subtracts_mean else 0.0) - xhat * (grads * xhat).mean(1, True)
    return grads * inv_std


NORMS = {  # how to bring each normalised set into a row, from (samples, channels, places)
    "batch": lambda t: t.transpose(0, 1).flatten(1),
    "layer": lambda t: t.flatten(1),
    "group": lambda t: t.reshape(t.shape[0] * 2, -1),
    "rms": lambda t: t.transpose(1, 2).flatten(0, 1),
}


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("shape", [(8, 6, 4), (3, 4, 25), (16, 4, 1)], ids=str)
def test_norms(kind, shape):
    sets = NORMS[kind]
    x, weight = normal(*shape) * 2 + 1, normal(1, shape[1], 1, seed=3)
    out_grad = normal(*shape, seed=2) + 0.5 * x  # along x too, as in training
    h, rows = out_grad * weight, sets(x)
    mean = torch.zeros(len(rows), 1, dtype=x.dtype) if kind == "rms" else rows.mean(1, keepdim=True)
    inv_std = 1 / (rows - mean).square().mean(1, keepdim=True).sqrt()
    var = torch.full((len(rows),), VAR, dtype=x.dtype)
    dot = (sets(h) * (rows - mean) * inv_std).sum(1)
    s = inv_std.squeeze(1)
    to_input = formulas.norm_input(var, s, sets(h).square().sum(1), dot, rows.shape[1])
    got = measured(lambda v: stored_norm(v, sets, mean, inv_std, h, kind != "rms"), x, 300)
    assert got == pytest.approx(to_input, rel=0.1)

    own = {"batch": lambda t: t.sum((0, 2)), "layer": lambda t: t.sum(0), "rms": lambda t: t.sum((0, 2))}
    if kind in own:  # gamma's gradient; per channel and place for layer norm
        expected = formulas.norm_weight(var, s, sets(out_grad).square().sum(1))
        back = _unset(kind, inv_std.expand_as(rows), shape)
        assert measured(lambda v: own[kind](out_grad * v * back), x, 300) == pytest.approx(expected, rel=0.1)


def _unset(kind, rows, shape):
    """Bring rows back to (samples, channels, places)."""
    n, c, p = shape
    return {
        "batch": lambda: rows.reshape(c, n, p).transpose(0, 1),
        "layer": lambda: rows.reshape(n, c, p),
        "rms": lambda: rows.reshape(n, p, c).transpose(1, 2),
    }[kind]()


def test_the_stored_norm_of_these_tests_is_that_of_torch():
    x, weight, out_grad = normal(8, 6, 4).requires_grad_(), normal(6, seed=3), normal(8, 6, 4, seed=2)
    (expected,) = torch.autograd.grad(F.batch_norm(x, None, None, weight, training=True, eps=1e-30), x, out_grad)
    rows = NORMS["batch"](x.detach())
    mean = rows.mean(1, keepdim=True)
    inv_std = 1 / (rows - mean).square().mean(1, keepdim=True).sqrt()
    got = stored_norm(x.detach(), NORMS["batch"], mean, inv_std, out_grad * weight.reshape(1, -1, 1))
    torch.testing.assert_close(got, NORMS["batch"](expected))


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_curved(name):
    x, out_grad = normal(50, 40), normal(50, 40, seed=2)
    function = getattr(F, name)

    def gradient(values):
        values = values.detach().requires_grad_()
        return torch.autograd.grad(function(values), values, out_grad)[0]

    expected = formulas.curved(VAR, out_grad, formulas.curvature(name, x))
    assert measured(gradient, x, 40) == pytest.approx(expected, rel=0.1)


def test_softmax():
    y, out_grad = normal(30, 12).softmax(-1), normal(30, 12, seed=2)
    gradient = lambda stored: stored * (out_grad - (out_grad * stored).sum(-1, keepdim=True))  # noqa: E731
    assert measured(gradient, y, 200) == pytest.approx(formulas.softmax(VAR, out_grad, y), rel=0.1)


def test_log_softmax():
    y, out_grad = normal(30, 12).log_softmax(-1), normal(30, 12, seed=2)
    gradient = lambda stored: out_grad - stored.exp() * out_grad.sum(-1, keepdim=True)  # noqa: E731
    assert measured(gradient, y, 200) == pytest.approx(formulas.log_softmax(VAR, out_grad, y), rel=0.1)


def attention_gradients(q, k, v, result, g, log_sums):
    """Return the gradients of q, k and v as attention's backward computes them from what is stored."""
    scale = q.shape[-1] ** -0.5
    p = (scale * q @ k.mT - log_sums).exp()
    slope = p * (g @ v.mT - (g * result).sum(-1, keepdim=True))
    return scale * slope @ k, scale * slope.mT @ q, p.mT @ g


@pytest.mark.parametrize("source", ["query", "key", "value", "result"])
def test_attention(source):
    q, k, v, g = (normal(2, n, 6, seed=seed) for seed, n in enumerate((9, 7, 7, 9)))
    log_sums = (q.shape[-1] ** -0.5 * q @ k.mT).logsumexp(-1, keepdim=True)
    model = formulas.Attention(q, k, v, g)
    stored = {"query": q, "key": k, "value": v, "result": model.p @ v}
    expected = getattr(model, f"from_{source}")(VAR)
    for index, target in enumerate(("query", "key", "value")):

        def gradient(values, index=index):
            tensors = {**stored, source: values}
            return attention_gradients(*tensors.values(), g, log_sums)[index]

        got = measured(gradient, stored[source], 400)
        assert got == pytest.approx(getattr(expected, target), rel=0.1, abs=1e-18), target


@pytest.mark.parametrize("is_transposed", [False, True])
def test_overlap_counts_what_a_convolution_of_ones_counts(is_transposed):
    size, kernel, stride, padding, dilation = 7, 3, 2, 2, 2
    function = F.conv_transpose1d if is_transposed else F.conv1d
    ones, weight = torch.ones(1, 1, size), torch.ones(1, 1, kernel)
    met = function(ones, weight, stride=stride, padding=padding, dilation=dilation)
    share = formulas.overlap([size], [met.shape[-1]], [kernel], [stride], [padding], [dilation], is_transposed)
    assert share == pytest.approx(float(met.sum()) / (kernel * met.shape[-1]))
