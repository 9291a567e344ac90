"""After every pitfall the thread is as before: no saved-tensor hooks, no function mode, grad mode on."""

from __future__ import annotations

import pytest
import torch
from scenes import hooks_are_off


@pytest.fixture(autouse=True)
def _thread_as_before():
    torch.manual_seed(0)
    yield
    assert hooks_are_off()
    assert torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()
