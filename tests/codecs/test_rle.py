"""rle: a byte for up to 128 words of a kind; good only where zeros cluster."""

import contracts
import pytest
import torch

from slimgrad import codecs


@pytest.mark.parametrize(("zeros", "tokens"), [(1, 1), (127, 1), (128, 1), (129, 2), (256, 2), (257, 3)])
def test_a_token_stands_for_at_most_128_words(zeros: int, tokens: int) -> None:
    values = torch.zeros(zeros + 3)
    values[zeros:] = 1.0
    blob = contracts.check_round_trip("rle", torch.cat([values, torch.zeros(64)]))
    assert blob.payload.numel() == 8 + tokens + 1 + 1 + 3 * 4  # index, zeros, ones, zeros, words


def test_clustered_zeros_cost_less_than_in_zvc_and_scattered_ones_more() -> None:
    clustered = torch.zeros(100_000)
    clustered[:30_000] = torch.rand(30_000) + 0.1
    scattered = clustered[torch.randperm(100_000)]
    sizes = {
        (name, kind): codecs.encode(x, name).nbytes
        for name in ("rle", "zvc")
        for kind, x in (("clustered", clustered), ("scattered", scattered))
    }
    assert sizes["rle", "clustered"] < sizes["zvc", "clustered"]
    assert sizes["rle", "scattered"] > sizes["zvc", "scattered"]


def test_dense_values_stay_raw() -> None:
    assert codecs.encode(torch.arange(1.0, 1001.0), "rle").codec == "raw"
