"""Values as words: views, not copies, for every size."""

import pytest
import torch

from slimgrad.codecs.words import not_written_by, words_of

SIZES = [
    (torch.bool, torch.uint8, 1),
    (torch.float8_e4m3fn, torch.uint8, 1),
    (torch.bfloat16, torch.int16, 1),
    (torch.float32, torch.int32, 1),
    (torch.complex64, torch.int64, 1),
    (torch.complex128, torch.int64, 2),
]


@pytest.mark.parametrize(("dtype", "word", "per_value"), SIZES)
def test_words_share_the_memory(dtype: torch.dtype, word: torch.dtype, per_value: int) -> None:
    values = torch.zeros(6, dtype=dtype)
    words = words_of(values)
    assert words.dtype == word
    assert words.shape == (6 * per_value,)
    assert words.data_ptr() == values.data_ptr()


def test_the_error_names_codec_values_and_bytes() -> None:
    error = not_written_by("zvc", torch.zeros(5, dtype=torch.uint8), torch.zeros(7))
    assert str(error) == "zvc: expected the bytes of 7 values of torch.float32, got 5 bytes that are not"
