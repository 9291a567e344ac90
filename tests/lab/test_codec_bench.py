"""The measuring of codecs: a code that is wrong must look wrong in the table."""

import time

import pytest
import torch

from slimgrad import codecs
from slimgrad.lab import codec_bench
from slimgrad.lab.codec_bench import Contender, Row, contenders, measure
from slimgrad.lab.samples import Sample, synthetic

SAMPLE = synthetic(1 << 16)


def measured_with(monkeypatch: pytest.MonkeyPatch, contender: Contender, sample: Sample = SAMPLE) -> Row:
    """Return the only row when this is the only contender."""
    only = {contender.is_lossless: [contender], not contender.is_lossless: []}
    monkeypatch.setattr(codec_bench, "contenders", lambda sample, eps: only[eps == 0.0])
    (row,) = measure([sample], (1.0,), rounds=3)
    return row


def lossy(decode) -> Contender:
    return Contender("other", False, lambda: SAMPLE.tensor, decode, lambda coded: coded.nbytes // 4)


def test_every_registered_codec_that_takes_floats_has_a_row() -> None:
    rows = list(measure([SAMPLE], (0.5, 1.0), rounds=1))
    shown = {row.codec for row in rows}
    assert {"raw", "nested"} <= shown & set(codecs.names())
    assert all(row.worst_error <= 1.0 and row.stored > 0 and row.encode_speed > 0 for row in rows)
    assert [row.step for row in rows if row.codec == "raw"] == [None]
    assert [row.step for row in rows if row.codec == "nested"] == [0.5, 1.0]


def test_raw_is_exact_and_as_large_as_the_values() -> None:
    (row,) = measure([SAMPLE], (1.0,), rounds=1, only="raw")
    assert row.ratio == pytest.approx(1.0, abs=1e-3)
    assert row.bits_per_value == pytest.approx(32.0, abs=0.02)
    assert (row.worst_error, row.signs_kept, row.zeros_kept) == (0.0, 1.0, 1.0)


def test_an_error_beyond_the_bound_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured_with(monkeypatch, lossy(lambda coded: coded + 1.0))
    assert row.eps == pytest.approx(0.5, rel=0.02)
    assert row.worst_error == pytest.approx(2.0, rel=0.02)
    assert row.zeros_kept == 0.0
    assert row.signs_kept == 1.0
    assert row.ratio == 4.0


def test_lost_signs_show(monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured_with(monkeypatch, lossy(lambda coded: coded - 0.25))
    share = float((SAMPLE.tensor[SAMPLE.tensor > 0] > 0.25).double().mean())
    assert row.signs_kept == pytest.approx(share)


def test_a_lossless_code_that_is_not_shows_an_infinite_error(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Contender("other", True, lambda: SAMPLE.tensor, lambda coded: coded + 1, lambda coded: coded.nbytes)
    assert measured_with(monkeypatch, changed).worst_error == float("inf")


def test_a_share_of_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = Sample("dense", torch.ones(64))
    contender = Contender("other", False, lambda: dense.tensor, lambda coded: coded, lambda coded: 1)
    assert measured_with(monkeypatch, contender, dense).zeros_kept is None


def test_speed_is_a_multiple_of_memcpy(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Contender("slow", False, lambda: time.sleep(0.02), lambda coded: SAMPLE.tensor, lambda coded: 1)
    row = measured_with(monkeypatch, slow)
    seconds = SAMPLE.nbytes / (row.memcpy_gb_per_s * 1e9)
    assert row.encode_speed < 2 * seconds / 0.02
    assert row.decode_speed > row.encode_speed


def test_threads_are_set_while_measuring_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    seen = []
    monkeypatch.setattr(codec_bench, "contenders", lambda sample, eps: seen.append(torch.get_num_threads()) or [])
    assert list(measure([SAMPLE], (1.0,), threads=before + 1)) == []
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


def test_contenders_are_lossy_for_a_bound_and_lossless_without() -> None:
    assert all(contender.is_lossless for contender in contenders(SAMPLE, 0.0))
    assert not any(contender.is_lossless for contender in contenders(SAMPLE, 0.1))


def test_a_code_that_cannot_take_the_sample_has_no_row() -> None:
    flags = Sample("flags", torch.tensor([True, False, True] * 99))
    shown = [row.codec for row in measure([flags], (0.5, 1.0), rounds=1)]
    assert shown.count("raw") == 1
    assert "nested" not in shown


def test_a_code_that_gains_nothing_has_no_row() -> None:
    noise = Sample("noise", torch.randint(256, (999,), dtype=torch.uint8))
    shown = {row.codec for row in measure([noise], (1.0,), rounds=1)}
    assert "deflate" not in shown
