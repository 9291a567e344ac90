"""The self-test of doctor: it passes here, and a codec that is wrong does not pass it."""

import torch

from slimgrad import codecs
from slimgrad.codecs.raw import Raw
from slimgrad.lab.self_test import DTYPES, EPS, check, run, sample


class Forgetful(Raw):
    """Loses the last value."""

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        super().decode(payload, out)
        out[-1:] = 0


class Rough(Raw):
    """Says it is lossy, and is so by a quarter, beyond the bound."""

    is_lossless = False

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        super().decode(payload, out)
        out += 0.25


def test_every_codec_passes() -> None:
    outcomes = list(run())
    assert {outcome.codec for outcome in outcomes} == set(codecs.names())
    assert [outcome for outcome in outcomes if outcome.fault] == []


def test_a_lost_value_is_found(monkeypatch) -> None:
    monkeypatch.setitem(codecs.CODECS, "raw", Forgetful)
    assert check(Forgetful(), torch.ones(9)) == "1 of 9 values changed"


def test_a_broken_bound_is_found(monkeypatch) -> None:
    monkeypatch.setitem(codecs.CODECS, "raw", Rough)
    assert check(Rough(), torch.ones(9)) == f"error 0.25 beyond the bound {EPS:g}"


def test_a_lost_nan_is_found(monkeypatch) -> None:
    monkeypatch.setitem(codecs.CODECS, "raw", Forgetful)
    monkeypatch.setattr(Forgetful, "is_lossless", False)
    assert "beyond the bound" in check(Forgetful(), torch.tensor([1.0, torch.nan]))


def test_an_error_is_reported_and_not_raised() -> None:
    fault = check(codecs.get("nested"), torch.ones(9, dtype=torch.int64))
    assert fault.startswith("ConfigError: codec 'nested' expected one of")


def test_samples_hold_what_breaks_codecs() -> None:
    for dtype in DTYPES:
        values = sample(dtype, 1823)
        assert values.dtype == dtype
        assert bool((values == 0).any())
        if dtype.is_floating_point:
            assert bool(values.isnan().any())
            assert bool(values.isinf().any())
