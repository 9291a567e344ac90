"""Which function saves a tensor, and what of it backward reads: labels, asked for inside real calls."""

from __future__ import annotations

import math

import pytest
import torch
from scenes import AUTOCASTS, Calls, random
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import slimgrad
from slimgrad import consumers, recorder
from slimgrad.consumers import Call, role_of
from slimgrad.roles import UNKNOWN, Need


class Asker(TorchFunctionMode):
    """Asks for the role of everything that is saved inside it."""

    def __init__(self):
        super().__init__()
        self.call, self.roles = None, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.call = Call(func, args, kwargs)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.call = None

    def pack(self, tensor):
        self.roles.append(role_of(tensor, self.call))
        return tensor.detach()


def roles_in(function):
    asker = Asker()
    with torch.autograd.graph.saved_tensors_hooks(asker.pack, lambda tensor: tensor), asker:
        function()
    return {role.name for role in asker.roles}, {role.need for role in asker.roles}


X = torch.randn(2, 4, 8, 8, requires_grad=True)
MADE = X * 1.0
CONV, LINEAR, NORM = nn.Conv2d(4, 4, 3), nn.Linear(8, 8), nn.BatchNorm2d(4)

CASES = {
    "conv": (lambda: CONV(MADE), "conv input", Need.VALUES),
    "functional conv": (lambda: F.conv2d(MADE, CONV.weight), "conv input", Need.VALUES),
    "linear": (lambda: LINEAR(MADE), "linear input", Need.VALUES),
    "batch norm": (lambda: NORM(MADE), "batch norm input", Need.VALUES),
    "layer norm": (lambda: F.layer_norm(MADE, (8,)), "layer norm input", Need.VALUES),
    "relu": (lambda: torch.relu(MADE), "relu result", Need.SIGN),
    "relu in place": (lambda: F.relu_(MADE * 2), "relu result", Need.SIGN),
    "relu method": (lambda: MADE.relu(), "relu result", Need.SIGN),
    "max pool": (lambda: F.max_pool2d(MADE, 2), "pool indices", Need.INDEX),
    "max pool input": (lambda: F.max_pool2d(MADE, 2), "pool input", Need.SHAPE),
    "dropout": (lambda: F.dropout(MADE, 0.5), "dropout mask", Need.MASK),
    "gelu": (lambda: F.gelu(MADE), "gelu input", Need.TIGHT),
    "softmax": (lambda: torch.softmax(MADE, -1), "softmax result", Need.TIGHT),
    "log softmax": (lambda: F.log_softmax(MADE, -1), "log-softmax result", Need.TIGHT),
    "attention": (lambda: F.scaled_dot_product_attention(MADE, MADE, MADE), "attention query, key", Need.TIGHT),
    "parameter": (lambda: CONV(MADE), "parameter", Need.PARAMETER),
    "parameter of linear": (lambda: LINEAR(MADE), "parameter", Need.PARAMETER),
}


@pytest.mark.parametrize("case", CASES)
def test_role(case):
    function, name, need = CASES[case]
    names, needs = roles_in(function)
    assert name in names
    assert need in needs


@pytest.mark.parametrize("function", [lambda: MADE.sin(), lambda: MADE.pow(3), lambda: MADE * MADE, lambda: MADE.exp()])
def test_what_is_not_in_the_table_is_needed_bit_for_bit(function):
    _, needs = roles_in(function)
    assert needs == {Need.EXACT}


def test_outside_of_any_call_nothing_is_known():
    assert role_of(MADE, None) is UNKNOWN


@pytest.mark.parametrize("module", [LINEAR, CONV], ids=repr)
def test_autocast_copies_of_weights_are_rebuilt(module):
    with torch.autocast("cpu", torch.bfloat16):
        _, needs = roles_in(lambda: module(MADE))
    assert needs == {Need.REBUILD, Need.VALUES}


def test_a_computed_weight_is_not_taken_for_an_input():
    weight = CONV.weight * 2
    names, needs = roles_in(lambda: F.conv2d(MADE, weight))
    assert needs == {Need.VALUES, Need.EXACT}
    assert "conv input" in names


@pytest.fixture
def roles_of(monkeypatch):
    """Return a function that runs another one attached and returns (shape, role name, need) of all it saves."""

    def run(function, *args, **members):
        seen = []

        def spy(tensor, call):
            role = consumers.role_of(tensor, call)
            seen.append((tuple(tensor.shape), role.name, role.need))
            return role

        monkeypatch.setattr(recorder, "role_of", spy)
        model = Calls(function, **members)
        with slimgrad.attach(model, bound=slimgrad.Exact(), min_bytes=1):
            model(*args)
        return seen

    return run


def names(seen):
    return [name for _, name, _ in seen]


X2, H = random(2, 4, 8, 8), random(2, 6, 16)
ONE_SAVE = {
    "F.relu": (F.relu, X2, "relu result"),
    "torch.relu": (torch.relu, X2, "relu result"),
    "Tensor.relu": (lambda x: x.relu(), X2, "relu result"),
    "relu_": (lambda x: F.relu_(x * 1), X2, "relu result"),
    "nn.ReLU": (nn.ReLU(), X2, "relu result"),
    "relu6": (F.relu6, X2, "relu6 input"),
    "nn.ReLU6": (nn.ReLU6(), X2, "hardtanh input"),
    "leaky_relu": (F.leaky_relu, X2, "leaky relu input"),
    "leaky in place": (lambda x: F.leaky_relu(x * 1, 0.1, inplace=True), X2, "leaky relu input"),
    "threshold": (lambda x: F.threshold(x, 0.5, 0.0), X2, "threshold input"),
    "clamp": (lambda x: x.clamp(0, 1), X2, "clamp input"),
    "clamp_min": (lambda x: torch.clamp_min(x, 0), X2, "clamp input"),
    "hardsigmoid": (F.hardsigmoid, X2, "hardsigmoid input"),
    "gelu": (F.gelu, X2, "gelu input"),
    "nn.GELU": (nn.GELU(), X2, "gelu input"),
    "silu": (F.silu, X2, "silu input"),
    "sigmoid": (torch.sigmoid, X2, "sigmoid result"),
    "tanh": (torch.tanh, X2, "tanh result"),
    "softmax": (lambda x: x.softmax(-1), X2, "softmax result"),
    "log_softmax": (lambda x: F.log_softmax(x, -1), X2, "log-softmax result"),
    "dropout": (lambda x: F.dropout(x, 0.3), X2, "dropout mask"),
    "abs": (torch.abs, X2, "abs input"),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), X2, "pool input"),
    "where": (lambda x: torch.where(x > 0, x, 0.0), X2, "boolean"),
    "exp": (torch.exp, X2, "unknown"),
}


@pytest.mark.parametrize("case", ONE_SAVE)
def test_functions_that_save_one_tensor(roles_of, case):
    function, x, expected = ONE_SAVE[case]
    assert names(roles_of(function, x * 1)) == [expected]


def test_a_frozen_weight_is_told_from_the_input(roles_of):
    linear = nn.Linear(16, 8)
    assert names(roles_of(linear, H * 1)) == ["linear input", "parameter"]
    linear.weight.requires_grad_(False)
    assert names(roles_of(linear, H * 1)) == ["parameter"]
    square = nn.Linear(16, 16)
    square.weight.requires_grad_(False)
    assert names(roles_of(lambda x: x @ square.weight, H * 1, square=square)) == ["parameter"]


@pytest.mark.parametrize("precision", AUTOCASTS)
def test_of_the_input_of_a_frozen_convolution_only_the_shape_is_needed(roles_of, precision):
    conv = nn.Conv2d(4, 4, 3).requires_grad_(False)
    with AUTOCASTS[precision]():
        seen = roles_of(conv, X2 * 1)
        functional = roles_of(lambda x: F.conv2d(x, conv.weight), X2 * 1, conv=conv)
    assert [need for shape, _, need in seen + functional if shape == X2.shape] == [Need.SHAPE] * 2


def test_a_weight_that_is_computed_from_frozen_and_other_parameters_reads_its_input(roles_of):
    conv, gain = nn.Conv2d(4, 4, 3).requires_grad_(False), nn.Parameter(torch.ones(()))
    seen = roles_of(lambda x: F.conv2d(x, conv.weight * gain), X2 * 1, conv=conv, gain=gain)
    assert (tuple(X2.shape), "conv input", Need.VALUES) in seen


@pytest.mark.parametrize("precision", AUTOCASTS)
@pytest.mark.parametrize("has_gradient", [True, False], ids=["input with gradient", "only a bias has one"])
def test_a_frozen_weight_is_not_taken_for_an_input_of_its_shape(precision, has_gradient):
    conv = nn.Conv1d(16, 16, 32)
    conv.weight.requires_grad_(False)
    x = random(16, 16, 32, grad=has_gradient) + 0
    model = Calls(lambda x: conv(x * 1), conv=conv)
    with slimgrad.attach(model, bound=slimgrad.Exact(), min_bytes=1), AUTOCASTS[precision]():
        y = model(x)
    assert y.grad_fn._saved_input.shape == x.shape
    assert not torch.equal(y.grad_fn._saved_input.float(), conv.weight.to(y.dtype).float())
    assert torch.equal(y.grad_fn._saved_weight, conv.weight.to(y.dtype))


def test_a_cast_of_the_users_own_is_not_rebuilt(roles_of):
    """Its values may have been changed through .data, which leaves no trace in the graph."""
    linear = nn.Linear(16, 16)

    def forward(x):
        weight = linear.weight.to(torch.bfloat16)
        weight.data.sign_()
        return F.linear(x.bfloat16(), weight)

    needs = {shape: need for shape, _, need in roles_of(forward, H * 1, linear=linear)}
    assert needs == {(12, 16): Need.VALUES, (16, 16): Need.EXACT}


def test_a_transposed_copy_is_no_copy_of_the_parameter(roles_of):
    """A square weight and its transpose have the same shape: to rebuild one for the other would be silent."""
    weight = nn.Parameter(random(16, 16))

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.matmul(x, weight.t())

    needs = [need for _, _, need in roles_of(forward, H * 1, weight=weight)]
    assert Need.REBUILD not in needs


def test_products_of_two_activations_are_tight(roles_of):
    assert names(roles_of(lambda x: x @ x.transpose(1, 2), H * 1)) == ["product operand"] * 2
    assert names(roles_of(lambda x: torch.einsum("btc,bsc->bts", x, x), H * 1)) == ["product operand"] * 2


def test_norms_code_their_input_and_nothing_else(roles_of):
    for norm, x, name in [
        (nn.BatchNorm2d(4), X2, "batch norm input"),
        (nn.GroupNorm(2, 4), X2, "group norm input"),
        (nn.LayerNorm(16), H, "layer norm input"),
        (nn.InstanceNorm2d(4), X2, "batch norm input"),
    ]:
        seen = roles_of(norm, x * 1)
        assert names(seen).count(name) == 1
        assert all(n in (name, "exact", "parameter") for n in names(seen))


def test_rows_are_those_of_the_norm(roles_of):
    call = consumers.Call(F.layer_norm, (H, (16,)), None)
    assert consumers.role_of(H, call).row == 16
    whole = consumers.Call(F.layer_norm, (H, (6, 16)), None)
    assert consumers.role_of(H, whole).row == 96
    strided = random(2, 16, 6).transpose(1, 2)
    scattered = consumers.role_of(strided, consumers.Call(F.layer_norm, (strided, (16,)), None))
    assert scattered.row == 0 and scattered.scale < 1


def test_attention_by_part(roles_of):
    q = random(2, 2, 6, 8)
    seen = roles_of(lambda q: F.scaled_dot_product_attention(q * 1, q * 2, q * 3), q * 1)
    found = names(seen)
    assert found.count("attention query, key") == 2
    assert found.count("attention value") == found.count("attention result") == 1
    assert ((2, 2, 6), "exact", Need.EXACT) in seen  # the logarithm of the sum


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": random(6, 6, grad=False)}],
    ids=["plain", "causal", "mask"],
)
def test_attention_with_dropout_is_composed_of_parts_and_none_of_them_is_needed_bit_for_bit(roles_of, options):
    def attend(x):
        return F.scaled_dot_product_attention(x + 1, x + 2, x + 3, dropout_p=0.1, **options)

    found = names(roles_of(attend, random(2, 2, 6, 8) * 1))
    assert sorted(found) == [
        "attention query, key", "attention query, key", "attention value", "dropout mask", "product operand",
        "softmax result",
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 4), (2, 5, 3, 4, 2), (2, 5, 3, 4, 2, 2)], ids=len)
def test_cross_entropy_needs_no_bit_of_its_log_softmax_exactly(roles_of, shape):
    target = torch.zeros((shape[0], *shape[2:]), dtype=torch.long)
    seen = roles_of(lambda x: F.cross_entropy(x, target), random(*shape) * 1)
    needs = {need for size, _, need in seen if math.prod(size) == math.prod(shape)}
    assert Need.TIGHT in needs and Need.EXACT not in needs


def test_the_mode_looks_into_multi_head_attention(roles_of):
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    found = names(roles_of(lambda x: attention(x, x, x, need_weights=False)[0], H * 1, attention=attention))
    assert found.count("linear input") == 2 and "attention query, key" in found


class Doubled(torch.Tensor):
    """A tensor whose functions are not those of torch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [arg.as_subclass(torch.Tensor) if isinstance(arg, cls) else arg for arg in args]
        return torch.exp(plain[0]) if func is torch.relu else func(*plain, **(kwargs or {}))


def test_functions_of_tensor_subclasses_are_unknown(roles_of):
    """Whatever such a class does in the name of relu, it need not be relu."""
    assert "relu result" not in names(roles_of(lambda x: torch.relu((x * 1).as_subclass(Doubled)), X2 * 1))


@pytest.mark.parametrize("change", ["hook", "forward"])
def test_a_simple_module_that_was_changed_is_not_taken_at_its_word(roles_of, change):
    relu = nn.ReLU()
    if change == "hook":
        relu.register_forward_pre_hook(lambda module, args: (args[0] * 1,))
    else:
        relu.forward = torch.exp
    assert names(roles_of(lambda x: relu(x), X2 * 1, relu=relu)) == ["relu result" if change == "hook" else "unknown"]


def test_a_constant_in_a_product_is_kept_bit_for_bit():
    constant = torch.randn(8, 8)
    _, needs = roles_in(lambda: MADE @ constant.t())
    assert needs == {Need.EXACT}
