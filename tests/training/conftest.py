"""Every test here runs in one thread, begins with the same random state, and must leave no hooks behind."""

from __future__ import annotations

import pytest
import torch
from scenes import hooks_are_off


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors are tiny: a second thread only waits, and on a busy machine for long."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture(autouse=True)
def _thread_as_before():
    torch.manual_seed(0)
    yield
    assert hooks_are_off()
    assert torch._C._len_torch_function_stack() == 0
