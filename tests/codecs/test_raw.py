"""raw: the bytes themselves, of the right number."""

import pytest
import torch

from slimgrad import codecs
from slimgrad.errors import CorruptPayload


def test_the_payload_is_the_memory() -> None:
    x = torch.tensor([1.0, -0.0, torch.nan]).view(torch.int32).add(1).view(torch.float32)
    blob = codecs.encode(x, "raw")
    assert blob.payload.tolist() == list(x.numpy().tobytes())
    assert blob.eps == 0.0


@pytest.mark.parametrize("nbytes", [0, 11, 13])
def test_another_number_of_bytes_is_refused(nbytes: int) -> None:
    with pytest.raises(CorruptPayload, match=f"raw: expected 12 bytes, got {nbytes}"):
        codecs.Raw().decode(torch.zeros(nbytes, dtype=torch.uint8), torch.empty(3))
