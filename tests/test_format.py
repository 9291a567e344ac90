"""The worked examples of docs/format.md: each is decoded from its hexadecimal, and written again."""

import re
from pathlib import Path

import contracts
import pytest
import torch

from slimgrad import Absolute, Relative, codecs
from slimgrad.codecs import Blob, Cast, Index

PAGES = [Path(__file__).resolve().parents[1] / "docs" / name for name in ("format.md", "format_nested.md")]
NAMES = {"torch": torch, "codecs": codecs, "Cast": Cast, "Index": Index, "Absolute": Absolute, "Relative": Relative}
EXAMPLES = [block for page in PAGES for block in re.findall(r"^```hex\n(.*?)^```", page.read_text(), re.M | re.S)]


def read(example: str) -> tuple[Blob, bytes]:
    """Return the blob that the first line makes, and the bytes of the lines below; words after two spaces are notes."""
    first, *lines = example.splitlines()
    return eval(first.removeprefix("# "), NAMES), bytes.fromhex("".join(line.split("  ")[0] for line in lines))


def test_every_codec_has_an_example() -> None:
    own_page = {"nested", "acgc"}
    assert {read(example)[0].codec for example in EXAMPLES} >= set(codecs.names()) - own_page


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0][:60])
def test_an_example_means_what_it_says(example: str) -> None:
    blob, data = read(example)
    assert contracts.same_bits(codecs.decode(codecs.from_bytes(data)), codecs.decode(blob))
    if blob.codec != "deflate":  # another zlib may compress otherwise
        assert codecs.to_bytes(blob) == data
