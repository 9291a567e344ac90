"""zvc: the ratio is the formula, and nothing but zero bits is left out."""

import contracts
import pytest
import torch

from slimgrad import codecs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize("density", [0.0, 0.0412, 0.22, 0.3534, 0.5])
def test_the_ratio_is_that_of_the_paper(dtype: torch.dtype, density: float) -> None:
    n, b = 1 << 18, 8 * dtype.itemsize
    values = torch.zeros(n)
    kept = round(n * density)
    values[torch.randperm(n, generator=torch.Generator().manual_seed(0))[:kept]] = 1.5
    blob = contracts.check_round_trip("zvc", (values * 2).to(dtype))
    index_nbytes = 2 * n // 16384
    assert blob.payload.numel() == index_nbytes + n // 8 + kept * dtype.itemsize
    assert n * dtype.itemsize / blob.nbytes == pytest.approx(b / (1 + b * kept / n), rel=2e-3)


def test_zeros_with_a_sign_are_values() -> None:
    values = torch.zeros(1000)
    values[::7] = -0.0
    blob = contracts.check_round_trip("zvc", values)
    assert blob.codec == "zvc"


def test_dense_values_stay_raw() -> None:
    assert codecs.encode(torch.arange(1.0, 1001.0), "zvc").codec == "raw"


def test_wide_complex_values_are_two_words_each() -> None:
    values = torch.zeros(500, dtype=torch.complex128)
    values[::9] = 1j
    blob = contracts.check_round_trip("zvc", values)
    assert blob.payload.numel() == 8 + 125 + 56 * 8
