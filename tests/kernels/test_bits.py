"""Masks, small integers and window offsets, against bytes made by hand and against torch's own pooling."""

import pytest
import torch
from kernel_sources import LENGTHS, Kernels, every_source, every_word, moved, room

from slimgrad.codecs import Index
from slimgrad.kernels import reference
from slimgrad.kernels.reference.bits import ONE_WIDE, Span, Window


def bits_by_hand(values: list[int], nbits: int) -> bytes:
    stream = sum(value << i * nbits for i, value in enumerate(values))
    return stream.to_bytes((len(values) * nbits + 7) // 8, "little")


def two_valued(count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    two = torch.tensor([torch.iinfo(dtype).max, torch.iinfo(dtype).min], dtype=dtype)
    return two[torch.randint(2, (count,), generator=rng)]


# ---- mask -----------------------------------------------------------------------------------------------------------


@every_source
@every_word
def test_a_mask_is_its_two_words_and_a_bit_each(source: str, dtype: torch.dtype) -> None:
    kernels = Kernels(source)
    for count in LENGTHS[1:]:
        words = two_valued(count, dtype, seed=count)
        out = room(2 * dtype.itemsize + count // 8 + 1)
        used = kernels.pack_mask(words, out)
        others = words[words != words[0]]
        second = others[:1] if others.numel() else words[:1]
        expected = bits_by_hand((words != words[0]).long().tolist(), 1)
        assert out[:used].numpy().tobytes() == words[:1].numpy().tobytes() + second.numpy().tobytes() + expected
        again = room(count * dtype.itemsize, offset=8).view(dtype)
        assert kernels.unpack_mask(moved(out[:used]), again)
        assert torch.equal(again, words)


@every_source
@pytest.mark.parametrize("place", [1, 2, 64, 16383, 16384, 39999])
def test_a_third_word_anywhere_does_not_fit(source: str, place: int) -> None:
    words = two_valued(40000, torch.int32, seed=0)
    words[place] = 7
    assert Kernels(source).pack_mask(words, room(40000)) == -1


@every_source
def test_masks_that_no_packer_writes_are_refused(source: str) -> None:
    kernels, words = Kernels(source), two_valued(13, torch.int16, seed=0)
    out = room(6)
    assert kernels.pack_mask(words, out) == 6
    assert not kernels.unpack_mask(out[:5], words.clone())
    assert not kernels.unpack_mask(out, torch.empty(17, dtype=torch.int16))
    out[5] |= 0x80  # the sixteenth of thirteen bits
    assert not kernels.unpack_mask(out, words.clone())


@every_source
def test_a_mask_needs_its_room(source: str) -> None:
    kernels = Kernels(source)
    assert kernels.pack_mask(two_valued(100, torch.int32, seed=0), room(20)) == -1
    assert kernels.pack_mask(torch.empty(0, dtype=torch.int32), room(20)) == -1


# ---- integers -------------------------------------------------------------------------------------------------------


@every_source
@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 5, 7, 8, 9, 14, 31, 32, 33, 57, 62, 63])
def test_integers_lie_one_after_another(source: str, nbits: int) -> None:
    kernels = Kernels(source)
    for count in LENGTHS[:14]:
        rng = torch.Generator().manual_seed(count)
        values = torch.randint(2**63 - 1, (count,), generator=rng) >> (63 - nbits)
        out = room((count * nbits + 7) // 8)
        assert kernels.pack_bits(values, nbits, out) == out.numel()
        assert out.numpy().tobytes() == bits_by_hand(values.tolist(), nbits)
        again = room(count * 8, offset=8).view(torch.int64)
        assert kernels.unpack_bits(moved(out), nbits, again)
        assert torch.equal(again, values)


@every_source
@pytest.mark.parametrize("nbits", [1, 3, 8, 20])
def test_many_integers(source: str, nbits: int) -> None:
    kernels = Kernels(source)
    values = torch.randint(1 << nbits, (70001,), generator=torch.Generator().manual_seed(0))
    ours, theirs, again = room(70001 * 3), room(70001 * 3), torch.empty_like(values)
    used = kernels.pack_bits(values, nbits, ours)
    assert used == reference.pack_bits(values, nbits, theirs)
    assert torch.equal(ours[:used], theirs[:used])
    assert kernels.unpack_bits(ours[:used], nbits, again)
    assert torch.equal(again, values)


@every_source
@pytest.mark.parametrize("wrong", [-1, 16, 2**62, -(2**63)])
@pytest.mark.parametrize("place", [0, 9, 20000])
def test_an_integer_of_more_bits_does_not_fit(source: str, wrong: int, place: int) -> None:
    values = torch.full((20001,), 15)
    values[place] = wrong
    assert Kernels(source).pack_bits(values, 4, room(20000)) == -1


@every_source
@pytest.mark.parametrize("nbits", [1, 3, 11])
def test_integers_cut_or_padded_with_ones_are_refused(source: str, nbits: int) -> None:
    kernels, values = Kernels(source), torch.ones(11, dtype=torch.int64)
    out = room((11 * nbits + 7) // 8)
    kernels.pack_bits(values, nbits, out)
    assert not kernels.unpack_bits(out[:-1], nbits, values)
    out[-1] |= 0x80
    assert not kernels.unpack_bits(out, nbits, values)


# ---- windows --------------------------------------------------------------------------------------------------------

POOLS = [  # spatial size of the input, arguments of max_pool
    ((40,), {"kernel_size": 2}),
    ((41,), {"kernel_size": 5, "stride": 2, "padding": 2}),
    ((30,), {"kernel_size": 3, "dilation": 4, "padding": 1}),
    ((12, 14), {"kernel_size": 2}),
    ((13, 15), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((13, 15), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ((14, 20), {"kernel_size": (2, 3), "stride": (3, 1), "padding": (0, 1), "dilation": (2, 3)}),
    ((9, 9), {"kernel_size": 9}),
    ((6, 30), {"kernel_size": (6, 4), "stride": 1}),
    ((16, 3), {"kernel_size": (5, 3), "stride": 1, "padding": (2, 1)}),
    ((6, 7, 8), {"kernel_size": 2}),
    ((9, 8, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((9, 10, 11), {"kernel_size": (2, 3, 2), "stride": (1, 2, 2), "dilation": (3, 2, 1)}),
]


def pooled(size: tuple[int, ...], arguments: dict, channels_last: bool = False) -> tuple[torch.Tensor, Index]:
    """Return the indices of a max-pool over random values, and the codec for them."""
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    if channels_last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    pool = getattr(torch.nn.functional, f"max_pool{len(size)}d")
    indices = pool(x, return_indices=True, **arguments)[1]
    given = {key: value for key, value in arguments.items() if key not in ("kernel_size", "ceil_mode")}
    return indices, Index.of_pool(indices, size, arguments["kernel_size"], **given)


def in_memory_order(indices: torch.Tensor) -> torch.Tensor:
    return indices if indices.is_contiguous() else indices.permute(0, *range(2, indices.dim()), 1)


@every_source
@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize(("size", "arguments"), POOLS)
def test_offsets_of_every_kind_of_pool(source: str, size, arguments: dict, is_channels_last: bool) -> None:
    if is_channels_last and len(size) == 1:
        return  # torch has no such layout
    kernels = Kernels(source)
    indices, codec = pooled(size, arguments, is_channels_last)
    window, flat = codec._window(), in_memory_order(indices).reshape(-1)
    nbits = max(1, (window.positions - 1).bit_length())
    out = room((flat.numel() * nbits + 7) // 8)
    assert kernels.pack_window(flat, window, nbits, out) == out.numel()
    expected = room(out.numel())
    reference.pack_window(flat, window, nbits, expected)
    assert torch.equal(out, expected)
    again = torch.empty_like(flat)
    assert kernels.unpack_window(out, window, nbits, again)
    assert torch.equal(again, flat)


@every_source
def test_an_offset_counts_width_first(source: str) -> None:
    window = Window((ONE_WIDE, Span(4, 2, 2, 2, 0, 1), Span(6, 3, 2, 2, 0, 1)), 1)
    indices = torch.tensor([0, 3, 10, 12, 21, 17])  # rows of six; offsets 0, 1, 2 / 0, 3, 1
    out = room(2)
    assert Kernels(source).pack_window(indices, window, 2, out) == 2
    assert out.tolist() == [0b00_10_01_00, 0b01_11]


@every_source
@pytest.mark.parametrize(("size", "arguments"), POOLS)
def test_sources_agree_on_any_indices(source: str, size, arguments: dict) -> None:
    kernels = Kernels(source)
    indices, codec = pooled(size, arguments)
    window, flat = codec._window(), indices.reshape(-1)
    nbits = max(1, (window.positions - 1).bit_length())
    rng = torch.Generator().manual_seed(1)
    total = torch.Size(size).numel()
    verdicts = set()
    for round in range(120):
        changed, at = flat.clone(), int(torch.randint(flat.numel(), (1,), generator=rng))
        near = int(torch.randint(-total, 2 * total, (1,), generator=rng))
        changed[at] = [near, int(flat[at]) + 1, int(flat[at]) - size[-1], -1, 2**63 - 1, -(2**63)][round % 6]
        ours, theirs = room(flat.numel() * nbits), room(flat.numel() * nbits)
        used = reference.pack_window(changed, window, nbits, theirs)
        assert kernels.pack_window(changed, window, nbits, ours) == used
        verdicts.add(used >= 0)
        if used >= 0:
            assert torch.equal(ours[:used], theirs[:used])
    assert False in verdicts


@every_source
@pytest.mark.parametrize(("size", "arguments"), POOLS)
def test_sources_agree_on_any_offsets(source: str, size, arguments: dict) -> None:
    kernels = Kernels(source)
    indices, codec = pooled(size, arguments)
    window, count = codec._window(), indices.numel()
    nbits = max(1, (window.positions - 1).bit_length())
    data = room((count * nbits + 7) // 8)
    reference.pack_window(indices.reshape(-1), window, nbits, data)
    rng = torch.Generator().manual_seed(2)
    for _ in range(60):
        damaged, at = data.clone(), int(torch.randint(data.numel(), (1,), generator=rng))
        damaged[at] ^= 1 << int(torch.randint(8, (1,), generator=rng))
        ours, theirs = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
        verdict = reference.unpack_window(damaged, window, nbits, theirs)
        assert kernels.unpack_window(damaged, window, nbits, ours) == verdict
        if verdict:
            assert torch.equal(ours, theirs)
            assert int(ours.min()) >= 0
            assert int(ours.max()) < torch.Size(size).numel()
