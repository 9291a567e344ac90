"""deflate: zlib on windows of 4 KiB, the strong and slow rival of zvc in cDMA.

Lossless for every dtype. Windows stand alone, so threads share them (zlib releases the GIL); one that does not shrink
is stored as it is. The bytes are those of the zlib that Python was built with: another zlib may compress differently,
and decodes them all the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from slimgrad.codecs.base import Bound, Channels, Codec, Room
from slimgrad.codecs.words import not_written_by

WINDOW = 4096  # bytes, as in cDMA
LEVEL = 6  # zlib's own default
RAW_STREAM = -15  # zlib's name for: no header, no checksum, 32 KiB of history

Item = TypeVar("Item")
Result = TypeVar("Result")


class Deflate(Codec):
    name = "deflate"
    tag = 6
    is_lossless = True
    dtypes = frozenset()  # any

    def encode(
        self, flat: torch.Tensor, bound: Bound | None, channels: Channels | None, room: Room
    ) -> torch.Tensor | None:
        data = flat.view(torch.uint8).numpy().data
        windows = [data[at : at + WINDOW] for at in range(0, len(data), WINDOW)]
        pieces = _on_threads(_shrink, windows)
        index = torch.tensor([len(piece) for piece in pieces], dtype=torch.int16).view(torch.uint8)
        nbytes = index.numel() + sum(len(piece) for piece in pieces)
        if nbytes >= len(data):
            return None
        payload = room(nbytes)[:nbytes]
        payload[: index.numel()] = index
        payload[index.numel() :] = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        return payload

    def decode(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        values = out.view(torch.uint8).numpy().data
        count = (len(values) + WINDOW - 1) // WINDOW
        sizes = payload[: 2 * count].clone().view(torch.int16).tolist() if payload.numel() >= 2 * count else []
        if len(sizes) != count or min(sizes, default=1) <= 0 or 2 * count + sum(sizes) != payload.numel():
            raise not_written_by(self.name, payload, out)
        data, at, jobs = payload.numpy().data, 2 * count, []
        for number, size in enumerate(sizes):
            jobs.append((data[at : at + size], values[number * WINDOW : (number + 1) * WINDOW]))
            at += size
        if not all(_on_threads(_restore, jobs)):
            raise not_written_by(self.name, payload, out)


def _shrink(window: memoryview) -> bytes | memoryview:
    """Return the window deflated, or as it is when that is not smaller."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW_STREAM)
    piece = packer.compress(window) + packer.flush()
    return piece if len(piece) < len(window) else window


def _restore(job: tuple[memoryview, memoryview]) -> bool:
    """Fill a window from its piece; False when the piece does not hold exactly that many bytes."""
    piece, window = job
    if len(piece) == len(window):
        window[:] = piece
        return True
    unpacker = zlib.decompressobj(RAW_STREAM)
    try:
        values = unpacker.decompress(piece, len(window) + 1)  # one more byte than wanted shows that there are too many
    except zlib.error:
        return False
    if len(values) != len(window) or not unpacker.eof or unpacker.unused_data:
        return False
    window[:] = values
    return True


def _on_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return work(item) for all items in order, a run of items per thread."""
    threads = min(torch.get_num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    size = -(-len(items) // threads)
    runs = [items[at : at + size] for at in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        return [result for part in pool.map(lambda run: [work(item) for item in run], runs) for result in part]
