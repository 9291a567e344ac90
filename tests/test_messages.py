"""Every error says what was expected, what was got, and what to type."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import slimgrad
from slimgrad import (
    Absolute,
    ConfigError,
    CorruptPayload,
    Relative,
    SlimgradError,
    UnknownCodec,
    codecs,
    errors,
    kernels,
)

SOURCE = Path(errors.__file__).parent


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def cut_raw() -> torch.Tensor:
    blob = codecs.encode(torch.ones(3), "raw")
    blob.payload = blob.payload[:-1]
    return codecs.decode(blob)


CASES: list[tuple[Callable[[], object], type[SlimgradError], list[str]]] = [
    (
        lambda: codecs.encode(torch.ones(3), "zip"),
        UnknownCodec,
        ["expected one of the codecs", "raw", "nested", "got 'zip'"],
    ),
    (
        lambda: codecs.encode(torch.ones(3), "nested"),
        ConfigError,
        ["is lossy and needs a bound", "got None", "bound=slimgrad.Absolute(0.01)"],
    ),
    (
        lambda: codecs.encode(torch.ones(3), "nested", slimgrad.Exact()),
        ConfigError,
        ["is lossy and needs a bound", "Exact()", "lossless codec"],
    ),
    (
        lambda: codecs.encode(torch.arange(3), "nested", Absolute(1)),
        ConfigError,
        ["'nested' expected one of", "torch.float32", "got torch.int64", "lossless codec"],
    ),
    (
        lambda: codecs.encode(sparse(), "raw"),
        ConfigError,
        ["expected a dense tensor", "got a torch.sparse_coo one", "to_dense()"],
    ),
    (lambda: codecs.encode(quantised(), "raw"), ConfigError, ["expected a dense tensor", "quantised", "dequantize()"]),
    (
        lambda: codecs.encode(torch.ones(3), "raw", axis=1),
        ConfigError,
        ["expected axis within the 1 dimensions", "got 1"],
    ),
    (lambda: codecs.encode(torch.ones(3, device="meta"), "raw"), ConfigError, ["got", "meta", ".cpu()"]),
    (
        lambda: Absolute(0.0),
        ConfigError,
        ["Absolute expected a positive finite number", "got 0.0", "write Absolute(0.01)", "Exact()"],
    ),
    (lambda: Absolute(-1), ConfigError, ["Absolute expected a positive finite number", "got -1"]),
    (
        lambda: Relative(float("nan")),
        ConfigError,
        ["Relative expected a positive finite number", "got nan", "write Relative(0.25)"],
    ),
    (lambda: Relative("0.25"), ConfigError, ["Relative expected a positive finite number", "got '0.25'"]),  # pyright: ignore
    (lambda: codecs.encode([1.0]), ConfigError, ["expected a tensor", "got list", "torch.tensor"]),  # pyright: ignore
    (
        lambda: codecs.encode(torch.ones(3), bound=0.1),  # pyright: ignore
        ConfigError,
        ["expected a fixed bound", "got 0.1", "bound=slimgrad.Absolute(0.1)"],
    ),
    (
        lambda: codecs.encode(torch.ones(3), bound=slimgrad.Noise()),  # pyright: ignore
        ConfigError,
        ["expected a fixed bound", "got Noise(", "bound=slimgrad.Absolute(0.01)", "Relative(0.25)"],
    ),
    (
        lambda: codecs.encode(torch.ones(3), bound=Absolute),  # pyright: ignore
        ConfigError,
        ["expected a fixed bound", "Absolute", "bound=slimgrad.Absolute(0.01)"],
    ),
    (
        lambda: codecs.encode(torch.ones(3), "raw", axis="1"),  # pyright: ignore
        ConfigError,
        ["expected axis within the 1 dimensions", "got '1'"],
    ),
    (lambda: slimgrad.Compress(["nested"]), UnknownCodec, ["expected one of the codecs", "got ['nested']"]),  # pyright: ignore
    (
        lambda: slimgrad.Recompute(blocks=1),  # pyright: ignore
        ConfigError,
        ["expected blocks=[pattern, ...] or 'auto'", "got 1", "blocks=['layer1.*']"],
    ),
    (
        lambda: slimgrad.Recompute(blocks=[1]),  # pyright: ignore
        ConfigError,
        ["expected blocks=[pattern, ...] or 'auto'", "got [1]", "blocks=['layer1.*']"],
    ),
    (lambda: slimgrad.Swap(fraction="a"), ConfigError, ["expected 0 < fraction <= 1", "got 'a'"]),  # pyright: ignore
    (cut_raw, CorruptPayload, ["raw", "expected 12 bytes", "got 11"]),
]


@pytest.mark.parametrize(("wrong", "kind", "fragments"), CASES)
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning", "ignore:.*quantiz:DeprecationWarning")
def test_the_message_says_what_to_type(
    wrong: Callable[[], object], kind: type[SlimgradError], fragments: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message
    assert type(caught.value) is kind
    assert not message.endswith(("!", "."))


@pytest.mark.parametrize("wish", ["fast", "NATIVE"])
def test_an_unknown_choice_of_kernels_lists_the_known(monkeypatch: pytest.MonkeyPatch, wish: str) -> None:
    monkeypatch.setenv("SLIMGRAD_KERNELS", wish)
    kernels.active.cache_clear()
    with pytest.raises(ConfigError, match=f"SLIMGRAD_KERNELS to be 'native' or 'reference', got '{wish}'"):
        kernels.active()


def test_the_kinds_are_those_that_the_module_draws() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, SlimgradError)}
    assert all(name in (errors.__doc__ or "") for name in kinds)
    assert kinds <= set(slimgrad.__all__)


def test_slimgrad_raises_only_its_own_kinds() -> None:
    builtin = {"ValueError", "TypeError", "RuntimeError", "AssertionError", "Exception", "KeyError"}
    raised = {
        f"{path.relative_to(SOURCE)}:{node.lineno}": ast.unparse(node.exc.func)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }
    assert {place: kind for place, kind in raised.items() if kind in builtin} == {}
