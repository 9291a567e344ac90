"""deflate: zlib window by window, and only exactly what fills a window is believed."""

import zlib

import contracts
import pytest
import torch

from slimgrad import codecs
from slimgrad.errors import CorruptPayload


def windows(*pieces: bytes) -> torch.Tensor:
    index = b"".join(len(piece).to_bytes(2, "little") for piece in pieces)
    return torch.frombuffer(bytearray(index + b"".join(pieces)), dtype=torch.uint8)


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def test_the_payload_is_an_index_and_raw_deflate_streams() -> None:
    values = (torch.arange(5000) % 50).to(torch.uint8)
    blob = contracts.check_round_trip("deflate", values)
    data = values.numpy().tobytes()
    expected = windows(deflated(data[:4096]), deflated(data[4096:]))
    assert torch.equal(blob.payload, expected)


def test_a_window_that_does_not_shrink_is_stored() -> None:
    noise = torch.randint(0, 256, (4096,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    blob = contracts.check_round_trip("deflate", torch.cat([noise, torch.zeros(4096, dtype=torch.uint8)]))
    assert torch.equal(blob.payload[4:4100], noise)


@pytest.mark.parametrize(
    "payload",
    [
        windows(deflated(bytes(99))),
        windows(deflated(bytes(101))),
        windows(deflated(bytes(10**6))),
        windows(deflated(bytes(100)) + b"more"),
        windows(deflated(bytes(100))[:-1]),
        windows(b"\xff" * 20),
        windows(deflated(bytes(100)), b"x"),
        windows(b""),
    ],
)
def test_streams_of_another_length_are_refused(payload: torch.Tensor) -> None:
    with pytest.raises(CorruptPayload, match="deflate: expected the bytes of 100 values"):
        codecs.Deflate().decode(payload, torch.empty(100, dtype=torch.uint8))
