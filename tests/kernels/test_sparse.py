"""zvc and rle against a program that builds the bytes of docs/format.md one by one; every source against the rest."""

import struct

import pytest
import torch
from kernel_sources import LENGTHS, Kernels, every_source, every_word, moved, room, sparse_words

from slimgrad.kernels import reference

BLOCK = 16384
CODES = ["zvc", "rle"]
DENSITIES = [0.0, 0.1, 0.5, 0.97, 1.0]


def zvc_by_hand(words: list[int], size: int) -> bytes:
    index, blocks = b"", b""
    for at in range(0, len(words), BLOCK):
        block = words[at : at + BLOCK]
        kept = [word for word in block if word]
        mask = sum(1 << i for i, word in enumerate(block) if word)
        index += struct.pack("<H", len(kept))
        blocks += mask.to_bytes((len(block) + 7) // 8, "little") + b"".join(
            word.to_bytes(size, "little") for word in kept
        )
    return index + bytes(-len(index) % 8) + blocks


def rle_by_hand(words: list[int], size: int) -> bytes:
    index, blocks = b"", b""
    for at in range(0, len(words), BLOCK):
        block = words[at : at + BLOCK]
        tokens, i = [], 0
        while i < len(block):
            run = i
            while run < len(block) and run < i + 128 and bool(block[run]) == bool(block[i]):
                run += 1
            tokens.append((run - i - 1) | (0 if block[i] else 0x80))
            i = run
        kept = [word for word in block if word]
        index += struct.pack("<HH", len(tokens), len(kept))
        blocks += bytes(tokens) + b"".join(word.to_bytes(size, "little") for word in kept)
    return index + bytes(-len(index) % 8) + blocks


BY_HAND = {"zvc": zvc_by_hand, "rle": rle_by_hand}


def unsigned(words: torch.Tensor) -> list[int]:
    return [word & ((1 << 8 * words.element_size()) - 1) for word in words.tolist()]


def packed(kernels: Kernels, code: str, words: torch.Tensor) -> torch.Tensor:
    out = room(2 * words.numel() * (words.element_size() + 1) + 64)
    used = getattr(kernels, f"pack_{code}")(words, out)
    assert used >= 0
    return out[:used]


@every_source
@every_word
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("density", DENSITIES)
def test_the_bytes_are_those_of_the_format(source: str, dtype: torch.dtype, code: str, density: float) -> None:
    kernels = Kernels(source)
    for count in LENGTHS:
        words = sparse_words(count, dtype, density, seed=count)
        payload = packed(kernels, code, words)
        assert payload.numpy().tobytes() == BY_HAND[code](unsigned(words), dtype.itemsize), count
        again = room(count * dtype.itemsize, offset=8).view(dtype)
        assert getattr(kernels, f"unpack_{code}")(moved(payload), again)
        assert torch.equal(again, words), count


@every_source
@pytest.mark.parametrize("code", CODES)
def test_nothing_is_written_beyond_the_room(source: str, code: str) -> None:
    kernels, words = Kernels(source), sparse_words(40000, torch.int32, 0.6)
    nbytes = packed(kernels, code, words).numel()
    for short in (1, 2, 100, nbytes - 1, nbytes):
        buffer = torch.full((nbytes + 64,), 0xAA, dtype=torch.uint8)
        assert getattr(kernels, f"pack_{code}")(words, buffer[: nbytes - short]) == -1
        assert bool((buffer[nbytes - short :] == 0xAA).all())
    exact = torch.full((nbytes + 64,), 0xAA, dtype=torch.uint8)
    assert getattr(kernels, f"pack_{code}")(words, exact[:nbytes]) == nbytes
    assert bool((exact[nbytes:] == 0xAA).all())


@every_source
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("count", [1, 13, 100, 16384, 16385])
def test_unpacking_writes_only_its_words(source: str, code: str, count: int) -> None:
    kernels, words = Kernels(source), sparse_words(count, torch.int16, 0.5)
    payload = packed(kernels, code, words)
    buffer = torch.full((count + 64,), -1, dtype=torch.int16)
    assert getattr(kernels, f"unpack_{code}")(payload, buffer[:count])
    assert bool((buffer[count:] == -1).all())


@every_source
@every_word
def test_minus_zero_and_every_nan_survive(source: str, dtype: torch.dtype) -> None:
    kernels = Kernels(source)
    words = torch.tensor([0, torch.iinfo(dtype).min or 128, 0, torch.iinfo(dtype).max, 1, 0], dtype=dtype)
    again = torch.empty_like(words)
    assert kernels.unpack_zvc(packed(kernels, "zvc", words), again)
    assert torch.equal(again, words)


@every_source
@pytest.mark.parametrize("code", CODES)
def test_what_no_packer_writes_is_refused(source: str, code: str) -> None:
    kernels, words = Kernels(source), sparse_words(16384 + 101, torch.int32, 0.5)
    payload = packed(kernels, code, words)
    unpack, out = getattr(kernels, f"unpack_{code}"), torch.empty_like(words)
    assert unpack(payload, out)
    assert not unpack(payload, torch.empty(16384 + 110, dtype=torch.int32))
    assert not unpack(torch.cat([payload, payload[:1]]), out)
    index_nbytes = 8
    wrong_bytes = {  # where, which bit: what it says
        "a count that does not add up": (0, 0),
        "a count beyond the block": (1, 7),
        "something in the padding of the index" if code == "zvc" else "another count": (index_nbytes - 1, 0),
        "a flag or a length that its count does not know": (index_nbytes, 0),
    }
    for what, (at, bit) in wrong_bytes.items():
        damaged = payload.clone()
        damaged[at] ^= 1 << bit
        assert not unpack(damaged, out), what


@every_source
def test_bits_beyond_the_last_word_are_refused(source: str) -> None:
    kernels, words = Kernels(source), torch.tensor([5, 0, 7], dtype=torch.int32)
    payload = packed(kernels, "zvc", words)
    swapped = payload.clone()
    swapped[8] = 0b1001  # two flags as before, one of them for a fourth word
    assert kernels.unpack_zvc(payload, torch.empty_like(words))
    assert not kernels.unpack_zvc(swapped, torch.empty_like(words))


@every_source
@pytest.mark.parametrize("code", CODES)
def test_all_sources_judge_damage_alike(source: str, code: str) -> None:
    kernels, words = Kernels(source), sparse_words(300, torch.int16, 0.5)
    payload = packed(kernels, code, words)
    rng = torch.Generator().manual_seed(1)
    verdicts = set()
    for _ in range(300):
        damaged = payload.clone()
        at = int(torch.randint(int(payload.numel()), (1,), generator=rng))
        damaged[at] ^= 1 << int(torch.randint(8, (1,), generator=rng))
        ours, theirs = torch.zeros_like(words), torch.zeros_like(words)
        verdict = getattr(reference, f"unpack_{code}")(damaged, theirs)
        assert getattr(kernels, f"unpack_{code}")(damaged, ours) == verdict
        verdicts.add(verdict)
        if verdict:
            assert torch.equal(ours, theirs)
    assert verdicts == {True, False}


@every_source
def test_a_large_odd_tensor(source: str) -> None:
    kernels, words = Kernels(source), sparse_words(1823 * 781, torch.int32, 0.4)
    for code in CODES:
        payload, expected = packed(kernels, code, words), packed(Kernels("reference"), code, words)
        assert torch.equal(payload, expected)
        again = torch.empty_like(words)
        assert getattr(kernels, f"unpack_{code}")(payload, again)
        assert torch.equal(again, words)
