"""Words that are mostly zero: zvc (a bit per word) and rle (runs). Plain torch, the specification of csrc/sparse.inc.

A word is a value's bits as an integer of 1, 2, 4 or 8 bytes, so -0.0 is not zero and every bit comes back. Blocks of
16,384 words stand alone, with an index in front, so that threads can share the work; docs/format.md has the bytes.

pack_* writes the start of `out` and returns the bytes used, or DOES_NOT_FIT when `out` is too small. unpack_* fills its
output and returns True, or returns False when the bytes are not what pack_* writes.
"""

from __future__ import annotations

import torch

from slimgrad.kernels.reference.bits import DOES_NOT_FIT, pack_bools, unpack_bools

BLOCK = 16384  # words; a block's counts fit 16 bits
RUN = 128  # words that one rle token can stand for
ZEROS = 0x80  # the bit of an rle token that says: these are zeros


def pack_zvc(words: torch.Tensor, out: torch.Tensor) -> int:
    """Write, per block, a bit for each word that is not zero, then those words."""
    blocks = [(pack_bools(block != 0), block[block != 0].view(torch.uint8)) for block in _blocks_of(words)]
    counts = [literals.numel() // words.element_size() for _, literals in blocks]
    return _write_blocks(_counts_to_index(counts), blocks, out)


def unpack_zvc(payload: torch.Tensor, words: torch.Tensor) -> bool:
    """Fill `words` from masks and packed words."""
    blocks = _blocks_of(words)
    counts = _index_to_counts(payload, len(blocks))
    masks = [(block.numel() + 7) // 8 for block in blocks]
    at = _padded_index_nbytes(len(blocks))
    if counts is None or payload.numel() != at + sum(masks) + sum(counts) * words.element_size():
        return False
    for block, mask_nbytes, count in zip(blocks, masks, counts, strict=True):
        kept = unpack_bools(payload[at : at + mask_nbytes], block.numel())
        at += mask_nbytes
        if kept is None or int(kept.sum()) != count:
            return False
        at = _place_literals(payload, at, kept, block)
    return True


def pack_rle(words: torch.Tensor, out: torch.Tensor) -> int:
    """Write, per block, tokens for runs of zeros and of other words, then the other words."""
    blocks, counts = [], []
    for block in _blocks_of(words):
        kept = block != 0
        tokens = _tokens_of(kept)
        blocks.append((tokens, block[kept].view(torch.uint8)))
        counts += [tokens.numel(), int(kept.sum())]
    return _write_blocks(_counts_to_index(counts), blocks, out)


def unpack_rle(payload: torch.Tensor, words: torch.Tensor) -> bool:
    """Fill `words` from runs and packed words."""
    blocks = _blocks_of(words)
    counts = _index_to_counts(payload, 2 * len(blocks))
    at = _padded_index_nbytes(2 * len(blocks))
    if counts is None:
        return False
    if payload.numel() != at + sum(counts[::2]) + sum(counts[1::2]) * words.element_size():
        return False
    for block, n_tokens, n_literals in zip(blocks, counts[::2], counts[1::2], strict=True):
        tokens = payload[at : at + n_tokens].long()
        at += n_tokens
        lengths = (tokens & (ZEROS - 1)) + 1
        if int(lengths.sum()) != block.numel() or int(lengths[tokens < ZEROS].sum()) != n_literals:
            return False
        at = _place_literals(payload, at, torch.repeat_interleave(tokens < ZEROS, lengths), block)
    return True


def _blocks_of(words: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return words.split(BLOCK) if words.numel() else ()


def _tokens_of(kept: torch.Tensor) -> torch.Tensor:
    """Return one byte per run of equal flags, longer runs cut every RUN: length - 1, plus ZEROS for a run of False."""
    starts = torch.cat([torch.zeros(1, dtype=torch.long), (kept[1:] != kept[:-1]).nonzero().view(-1) + 1])
    lengths = torch.diff(starts, append=torch.tensor([kept.numel()]))
    pieces = (lengths + RUN - 1) // RUN
    tokens = torch.full((int(pieces.sum()),), RUN - 1, dtype=torch.long)
    tokens[pieces.cumsum(0) - 1] = (lengths - 1) % RUN
    zeros = torch.repeat_interleave(~kept[starts], pieces)
    return (tokens + zeros * ZEROS).to(torch.uint8)


def _place_literals(payload: torch.Tensor, at: int, kept: torch.Tensor, block: torch.Tensor) -> int:
    """Fill a block from the words stored at `at`, zero elsewhere, and return where they end."""
    end = at + int(kept.sum()) * block.element_size()
    block.zero_()
    block[kept] = payload[at:end].clone().view(block.dtype)
    return end


def _padded_index_nbytes(count: int) -> int:
    return (2 * count + 7) // 8 * 8  # so that words of a full block are aligned to their size


def _counts_to_index(counts: list[int]) -> torch.Tensor:
    """Return the counts as 16-bit numbers, padded with zeros to 8 bytes."""
    index = torch.zeros(_padded_index_nbytes(len(counts)) // 2, dtype=torch.int16)
    index[: len(counts)] = torch.tensor(counts, dtype=torch.int16)
    return index.view(torch.uint8)


def _index_to_counts(payload: torch.Tensor, count: int) -> list[int] | None:
    """Return the counts at the payload's start, or None when they are cut, too large, or not padded with zeros."""
    nbytes = _padded_index_nbytes(count)
    if payload.numel() < nbytes:
        return None
    index = payload[:nbytes].clone().view(torch.int16).tolist()
    if any(not 0 <= number <= BLOCK for number in index) or any(index[count:]):
        return None
    return index[:count]


def _write_blocks(index: torch.Tensor, blocks: list[tuple[torch.Tensor, torch.Tensor]], out: torch.Tensor) -> int:
    pieces = [index, *(piece for block in blocks for piece in block)]
    nbytes = sum(piece.numel() for piece in pieces)
    if nbytes > out.numel():
        return DOES_NOT_FIT
    out[:nbytes] = torch.cat(pieces)
    return nbytes
