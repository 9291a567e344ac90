"""Blobs count what they keep."""

import pytest
import torch

from slimgrad import codecs
from slimgrad.codecs.base import Blob, header_nbytes

SHAPES = [(), (0,), (1,), (127,), (128,), (2, 3, 5, 7), (16384, 1), (1,) * 64]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_permuted", [False, True])
def test_nbytes_are_the_bytes_written(shape: tuple[int, ...], is_permuted: bool) -> None:
    order = tuple(reversed(range(len(shape)))) if is_permuted else tuple(range(len(shape)))
    blob = Blob("raw", torch.float32, shape, order, torch.zeros(11, dtype=torch.uint8))
    assert len(codecs.to_bytes(blob)) == blob.nbytes == header_nbytes(shape, order) + 11


def test_numel_is_the_product_of_the_shape() -> None:
    payload = torch.zeros(0, dtype=torch.uint8)
    assert Blob("raw", torch.float32, (2, 3, 4), (0, 1, 2), payload).numel == 24
    assert Blob("raw", torch.float32, (), (), payload).numel == 1
    assert Blob("raw", torch.float32, (3, 0), (0, 1), payload).numel == 0


def test_codecs_are_values() -> None:
    assert codecs.Cast("float8") == codecs.Cast("float8") != codecs.Cast()
    assert repr(codecs.Cast("float8")) == "Cast(to='float8')"
    assert len({codecs.Index(), codecs.Index()}) == 1
