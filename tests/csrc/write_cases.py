"""Write inputs, payloads and restored values of every compiled code to one file, for replay.cpp on another machine.

    python tests/csrc/write_cases.py build/arm64/cases.bin

The payloads are those of the instruction set in use here. A case is a fixed header (HEADER, `Header` in replay.cpp)
and then its values, payload and restored values.
"""

from __future__ import annotations

import pathlib
import struct
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "kernels")]

import test_bits  # noqa: E402
import test_nested  # noqa: E402
from kernel_sources import WORDS, sparse_words  # noqa: E402

from slimgrad.kernels import native  # noqa: E402

HEADER = struct.Struct("<3q20q2d3q")  # code, type, n; numbers; rel, absolute; bytes of values, payload, restored
NESTED, ZVC, RLE, MASK, BITS, WINDOW = range(6)
NESTED_SIZES = [1, 65, 1023, 16385, 40000]
WORD_SIZES = [1, 63, 65, 16384, 40001]


class Case(NamedTuple):
    """One call of an encoder and of its decoder, with what they gave here."""

    code: int
    type: int  # of nested the dtype, else the bytes of a word
    values: torch.Tensor
    payload: torch.Tensor
    restored: torch.Tensor
    numbers: tuple[int, ...] = ()
    bound: tuple[float, float] = (0.0, 0.0)

    def to_bytes(self) -> bytes:
        parts = [bytes_of(self.values), bytes_of(self.payload), bytes_of(self.restored)]
        numbers = (*self.numbers, *[0] * (20 - len(self.numbers)))
        head = HEADER.pack(self.code, self.type, self.values.numel(), *numbers, *self.bound, *map(len, parts))
        return head + b"".join(parts)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def nested_cases() -> Iterator[Case]:
    for dtype, number in native.DTYPES.items():
        for make in test_nested.KINDS.values():
            for wish in test_nested.WISHES.values():
                for count in NESTED_SIZES:
                    n = count // (wish.channels * wish.inner) * wish.channels * wish.inner or count
                    if n % (wish.channels * wish.inner):
                        continue
                    x = make(n).to(dtype)
                    payload = test_nested.payload_of(native, x, wish)
                    restored = test_nested.unpacked(native, payload, x) if payload.numel() else x[:0]
                    options = native.CENTRED * wish.centred + native.SAMPLED * wish.sampled
                    numbers, bound = (wish.channels, wish.inner, wish.apart, options), (wish.rel, wish.absolute)
                    yield Case(NESTED, number, x, payload, restored, numbers, bound)


def lossless(
    code: int, values: torch.Tensor, pack: Callable[..., int], unpack: Callable[..., bool], *numbers: int
) -> Case:
    """Return the case of a code that gives back what it was given."""
    out = torch.empty(values.numel() * 10 + 64, dtype=torch.uint8)
    used = pack(values, out)
    restored = torch.empty_like(values)
    assert used >= 0
    assert unpack(out[:used], restored)
    return Case(code, values.element_size(), values, out[:used].clone(), restored, numbers)


def lossless_cases() -> Iterator[Case]:
    for count in WORD_SIZES:
        for dtype in WORDS:
            for density in (0.0, 0.1, 0.5, 1.0):
                words = sparse_words(count, dtype, density, seed=count)
                yield lossless(ZVC, words, native.pack_zvc, native.unpack_zvc)
                yield lossless(RLE, words, native.pack_rle, native.unpack_rle)
            yield lossless(MASK, test_bits.two_valued(count, dtype, seed=count), native.pack_mask, native.unpack_mask)
        for nbits in (1, 3, 8, 20, 63):
            values = torch.randint(2**63 - 1, (count,)) >> (63 - nbits)
            yield lossless(
                BITS,
                values,
                lambda values, out, nbits=nbits: native.pack_bits(values, nbits, out),
                lambda data, values, nbits=nbits: native.unpack_bits(data, nbits, values),
                nbits,
            )


def window_cases() -> Iterator[Case]:
    for size, arguments in test_bits.POOLS:
        indices, codec = test_bits.pooled(size, arguments)
        window = codec._window()
        nbits = max(1, (window.positions - 1).bit_length())
        numbers = (*(number for span in window.spans for number in span), window.channels, nbits)
        yield lossless(
            WINDOW,
            indices.reshape(-1),
            lambda values, out, window=window, nbits=nbits: native.pack_window(values, window, nbits, out),
            lambda data, values, window=window, nbits=nbits: native.unpack_window(data, window, nbits, values),
            *numbers,
        )


def main(path: str) -> None:
    torch.manual_seed(0)
    count = 0
    with open(path, "wb") as file:
        for cases in (nested_cases(), lossless_cases(), window_cases()):
            for case in cases:
                file.write(case.to_bytes())
                count += 1
    print(f"wrote {count} cases of {native.isa()}")


if __name__ == "__main__":
    main(sys.argv[1])
