"""What holds for every test: one thread, the same random state, and no hooks or modes left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import contracts
import pytest
import torch
from scenes import hooks_are_off

# oneDNN's kernels for AVX-512 differ from run to run in plain PyTorch too (3-D convolutions in bfloat16), and some
# virtual machines advertise AMX and do not grant it: an illegal instruction. It reads this when it first runs, and
# processes that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tensors are small here: a second thread only waits, and on a busy machine for long. A test may ask for more.

    Also, children are forked by some tests, and torch's threads would be gone in them.
    """
    with contracts.torch_threads(1):
        yield


@pytest.fixture(autouse=True)
def _thread_as_before() -> Iterator[None]:
    torch.manual_seed(0)
    with contracts.torch_threads(1):
        yield
    assert hooks_are_off()
    assert torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads that change over after nearly every instruction."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
