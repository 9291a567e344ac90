"""Pitfalls about data parallelism: DDP, and FSDP2 whose parameters are new storages in every forward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from pitfalls import naive, ranks
from pitfalls.naive import goes_red

import slimgrad

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore"),  # torch.distributed warns about its own calls
]


@pytest.fixture
def alone(tmp_path):
    """A process group of this process only."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def check_two_ranks(kind, store):
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    processes = [
        subprocess.Popen(
            [sys.executable, ranks.__file__, kind, str(rank), "2", str(store)],
            env={**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_05_fsdp_parameters_are_recognised_though_their_storage_is_new(alone):
    """All-gathered parameters are plain tensors at addresses nobody has seen: only their history says what they are."""
    ranks.check_distributed(slimgrad.attach, "fsdp", 0)
    goes_red(ranks.check_distributed, naive.lossy_unless_known_pointer, "fsdp", 0)
    goes_red(ranks.check_distributed, naive.lossy_unless_parameter_class, "fsdp", 0)


def test_06_ddp_gives_the_same_gradients(alone):
    """Nothing special happens under DDP, and nothing special must be done to it."""
    ranks.check_distributed(slimgrad.attach, "ddp", 0)
    goes_red(ranks.check_distributed, naive.lossy_unless_parameter_class, "ddp", 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_06_two_ranks_agree(kind, tmp_path):
    """The same in two processes that really exchange gradients, over the loopback device."""
    check_two_ranks(kind, tmp_path / "store")
