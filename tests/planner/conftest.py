"""One thread: tensors are small here, and waiting threads would cost more than they give."""

from collections.abc import Iterator

import contracts
import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with contracts.torch_threads(1):
        yield
