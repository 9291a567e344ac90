"""What codecs are measured on."""

import pytest
import torch

from slimgrad.lab.samples import rms_of_nonzero, synthetic


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_synthetic_is_half_zeros_with_an_rms_of_one(dtype: torch.dtype) -> None:
    sample = synthetic(1 << 20, dtype)
    assert sample.nbytes == 1 << 20
    assert sample.tensor.dtype == dtype
    assert float((sample.tensor == 0).float().mean()) == pytest.approx(0.5, abs=0.005)
    assert rms_of_nonzero(sample.tensor) == pytest.approx(1.0, abs=0.01)


def test_rms_counts_only_what_is_not_zero() -> None:
    assert rms_of_nonzero(torch.tensor([0.0, 3.0, 0.0, -4.0])) == pytest.approx((25 / 2) ** 0.5)
    assert rms_of_nonzero(torch.zeros(3)) == 0.0
    assert rms_of_nonzero(torch.empty(0)) == 0.0
