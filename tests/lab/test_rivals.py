"""The other compressors of the codec table keep what is said of them, or the table would be unfair."""

import pytest
import torch

from slimgrad.lab.rivals import RIVALS, Rival, installed


@pytest.fixture(params=RIVALS, ids=lambda rival: rival.name)
def rival(request: pytest.FixtureRequest) -> Rival:
    pytest.importorskip(request.param.package, reason="the extra 'rivals' is not installed")
    return request.param


@pytest.mark.parametrize("shape", [(4097,), (65, 33), (4, 3, 16, 15)])
def test_a_rival_keeps_the_bound(rival: Rival, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()
    coded = rival.encode(tensor, 0.25)
    restored = rival.decode(coded)
    assert restored.shape == tensor.shape
    assert 0 < rival.nbytes(coded) < tensor.nbytes
    error = float((restored.double() - tensor.double()).abs().max())
    assert error == 0.0 if rival.is_lossless else 0.0 < error <= 0.25


def test_an_installed_rival_is_listed(rival: Rival) -> None:
    assert rival in installed()


def test_only_lossless_rivals_take_every_dtype(rival: Rival) -> None:
    assert rival.takes(torch.zeros(3))
    assert rival.takes(torch.zeros(3, dtype=torch.int64)) == rival.is_lossless
    assert rival.takes(torch.zeros(3, dtype=torch.bfloat16)) == rival.is_lossless
    assert rival.takes(torch.zeros(1, 1, 1, 1, 1)) == rival.is_lossless
