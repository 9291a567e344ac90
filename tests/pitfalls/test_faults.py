"""What can go wrong with a tier in the middle of training: right gradients or a clear error, no file left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from scenes import gradients, same
from torch import nn
from torch.utils.data import DataLoader, Dataset

import slimgrad
from slimgrad import ConfigError, CorruptPayload, Exact, Swap
from slimgrad.storage.disk import BLOCK

SIZE = 1 << 14  # values in a map; 64 KiB
DEPTH = 6


class Net(nn.Module):
    """Backward needs the six results of tanh; `fails_at` raises in the middle of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.layers = nn.ModuleList(nn.Tanh() for _ in range(DEPTH))
        self.fails_at = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number == self.fails_at:
                raise ValueError("in the middle")
            x = layer(x * self.scale)
        return x


def data(seed: int = 0) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def plain(x: torch.Tensor) -> list[torch.Tensor]:
    net = Net()
    return gradients(net(x).square().sum(), net)


def policy(directory, **options) -> Swap:
    return Swap(**{"tier": "disk", "directory": directory, "min_bytes": 0, "compress": False, **options})


@pytest.fixture
def net(tmp_path):
    net = Net()
    session = slimgrad.attach(net, bound=Exact(), policy=policy(tmp_path))
    net.session = session
    yield net
    session.detach()
    assert os.listdir(tmp_path) == []


def step(net: Net, x: torch.Tensor, drains: bool = True) -> list[torch.Tensor]:
    net.zero_grad()
    loss = net(x).square().sum()
    if drains:
        net.session.shelf.tiers.worker.drain()
    return gradients(loss, net)


def check_steps(net: Net, *seeds: int) -> None:
    for seed in seeds:
        assert same(step(net, data(seed)), plain(data(seed)))


def test_disk_full(net, monkeypatch):
    pwrite = os.pwrite

    def full(fd, piece, at):
        if at >= 2 * SIZE * 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, piece, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.warns(UserWarning, match=r"stay in memory.*No space left.*Swap\(tier='disk', directory=\.\.\.\)"):
        check_steps(net, 0, 1)
    check_steps(net, 2)  # and no second warning
    report = str(net.session.report()).replace("\n", " ")
    assert "stayed in memory" in report


def test_a_limit_of_the_system_on_the_size_of_files(net):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * SIZE * 4, before[1]))
    try:
        with pytest.warns(UserWarning, match="File too large"):
            check_steps(net, 0, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert net.session.shelf.tiers.disk().disk.nbytes_peak == 3 * SIZE * 4


def test_directory_removed(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    net = Net()
    with slimgrad.attach(net, bound=Exact(), policy=policy(own)) as net.session:
        assert same(step(net, data()), plain(data()))
        own.rmdir()
        assert same(step(net, data(1)), plain(data(1)))
    with pytest.raises(ConfigError, match=r"own.*directory=\.\.\."):
        slimgrad.attach(net, policy=policy(own))
    slimgrad.attach(net, policy=Swap()).detach()  # the model was left free


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_worker_killed(net):
    def die(_):
        raise SystemExit

    assert same(step(net, data()), plain(data()))
    worker = net.session.shelf.tiers.worker
    worker.submit(net, die, 1)
    with pytest.warns(UserWarning, match="the thread that writes has died"):
        check_steps(net, 1, 2)
    check_steps(net, 3)


def test_worker_failing(net, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        check_steps(net, 0, 1)


@pytest.mark.parametrize("compress", [False, True])
def test_corrupt_block(tmp_path, compress):
    net = Net()
    bound = slimgrad.Relative(0.5)
    with slimgrad.attach(net, bound=bound, policy=policy(tmp_path, compress=compress)) as session:
        loss = net(data()).square().sum()
        session.shelf.tiers.worker.drain()
        fd = session.shelf.tiers.disk().disk._own_file().fd
        page = session.shelf.buffers.take(BLOCK, BLOCK).numpy()
        for at in range(0, os.fstat(fd).st_size, BLOCK):
            os.preadv(fd, [page], at)
            page[100] ^= 4
            os.pwrite(fd, page, at)
        with pytest.raises(CorruptPayload, match="checksum"):
            loss.backward()
        assert net.scale.grad is None or torch.equal(net.scale.grad, torch.zeros(()))
        net.session = session
        assert step(net, data())[0].isfinite(), "the next step is not concerned"


PROGRAM = """
import sys, torch, slimgrad
from torch import nn
net = nn.Sequential(*(nn.Tanh() for _ in range(8)))
session = slimgrad.attach(net, bound=slimgrad.Exact(), policy=slimgrad.Swap("disk", False, sys.argv[1]))
x = torch.randn(1 << 20, requires_grad=True)
while True:
    net(x).sum().backward()
    print(session.shelf.tiers.disk().disk.nbytes_peak, flush=True)
"""


def test_sigterm_during_a_step(tmp_path):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        n_bytes = int(child.stdout.readline())
        n_names = len(os.listdir(tmp_path))
        time.sleep(0.05)
        child.terminate()
    assert child.returncode == -signal.SIGTERM
    assert n_bytes > 0
    assert n_names == 0, "no name even while it runs"
    assert os.listdir(tmp_path) == []


def test_two_processes_share_a_directory(net, tmp_path):
    expected = [plain(data(seed)) for seed in range(4)]
    pid = os.fork()
    if pid == 0:
        try:
            other = Net()
            other.session = slimgrad.attach(other, bound=Exact(), policy=policy(tmp_path))
            is_right = all(same(step(other, data(seed)), expected[seed]) for seed in (2, 3, 2, 3))
            os._exit(0 if is_right and other.session.shelf.tiers.disk().n_loaded > 0 else 2)
        finally:
            os._exit(1)
    for seed in (0, 1, 0, 1):
        assert same(step(net, data(seed)), expected[seed])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Watched(Dataset):
    """Each item says how many files of a directory its process has open."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return data(index), sum(os.readlink(n).startswith(self.directory) for n in names if os.path.lexists(n))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_forked_data_loader(net, tmp_path):
    loss = net(data(9)).square().sum()  # extents that the children inherit, and a worker that is writing
    for x, n_open in DataLoader(Watched(str(tmp_path)), batch_size=None, num_workers=2, multiprocessing_context="fork"):
        assert n_open == 0, "children let go of the file"
        assert same(step(net, x, drains=False), plain(x))
    net.zero_grad()
    assert same(gradients(loss, net), plain(data(9)))


def test_exceptions_in_forward(net):
    net.fails_at = 4
    for _ in range(3):
        with pytest.raises(ValueError, match="middle"):
            net(data())
    net.session.shelf.tiers.worker.drain()
    assert net.session.shelf.tiers.disk().disk.nbytes_live == 0
    net.fails_at = -1
    assert same(step(net, data()), plain(data()))


def test_retain_graph(net):
    loss = net(data()).square().sum()
    net.session.shelf.tiers.worker.drain()
    first = [g.clone() for g in torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)]
    again = torch.autograd.grad(loss, list(net.parameters()))
    assert same(first, plain(data())) and same(list(again), first)


@pytest.mark.parametrize("drains", [True, False])
def test_detached_with_graphs_alive(net, drains):
    losses = [net(data(seed)).square().sum() for seed in range(2)]
    if drains:
        net.session.shelf.tiers.worker.drain()
    net.session.detach()
    for seed, loss in enumerate(losses):
        net.zero_grad()
        assert same(gradients(loss, net), plain(data(seed)))


def test_no_thread_is_left(tmp_path):
    net = Net()
    with slimgrad.attach(net, bound=Exact(), policy=policy(tmp_path, overlap=True)) as net.session:
        step(net, data())
    deadline = time.monotonic() + 10
    while any(t.name == "slimgrad" for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(t.name == "slimgrad" for t in threading.enumerate())
