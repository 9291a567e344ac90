"""Failed allocations are known by kind or by words, and their memory comes back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from slimgrad.planner.out_of_memory import give_back_memory, is_out_of_memory


def raised_from(cause: BaseException) -> BaseException:
    try:
        raise ValueError("step failed") from cause
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (raised_from(MemoryError()), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("not enough memory of the past"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_which_errors_are_failed_allocations(error, is_one):
    assert is_out_of_memory(error) is is_one


def test_torch_itself_says_so():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)


def test_tensors_in_the_frames_of_the_error_are_freed():
    held = []

    def step() -> None:
        tensor = torch.ones(1000)
        held.append(weakref.ref(tensor))
        raise MemoryError

    try:
        step()
    except MemoryError as error:
        gc.collect()
        assert held[0]() is not None
        give_back_memory(error)
    assert held[0]() is None
