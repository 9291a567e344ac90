"""Disk: what is read is what was written or an error; no name, no page cache, no file shared with a child."""

from __future__ import annotations

import errno
import os
import signal

import pytest
import torch

from slimgrad import ConfigError, CorruptPayload, StorageFull
from slimgrad.storage import Buffers, Disk
from slimgrad.storage import disk as disk_module
from slimgrad.storage.disk import BLOCK, CHUNK, default_directory, is_in_memory


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    disk.close()


def some(nbytes: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def read(disk: Disk, extent) -> torch.Tensor:
    out = Buffers().take(extent.nbytes, BLOCK)
    disk.read(extent, out)
    return out


def flip(disk: Disk, extent, at: int) -> None:
    """Change one byte of the file behind the disk's back."""
    page = Buffers().take(BLOCK, BLOCK)
    where = extent.start + at // BLOCK * BLOCK
    os.preadv(extent.file.fd, [page.numpy()], where)
    page[at % BLOCK] ^= 1
    os.pwrite(extent.file.fd, page.numpy(), where)


@pytest.mark.parametrize("nbytes", [0, 1, 511, BLOCK, BLOCK + 1, 100_003, CHUNK, CHUNK + 7, 2 * CHUNK + BLOCK])
def test_bytes_come_back(disk, nbytes):
    data = some(nbytes)
    assert torch.equal(read(disk, disk.write(data)), data)


def test_any_memory_can_be_written(disk):
    data = some(50_000)[17:40_001]  # begins and ends nowhere in particular
    assert torch.equal(read(disk, disk.write(data)), data)


def test_the_file_has_no_name_and_frees_itself(disk, tmp_path):
    extent = disk.write(some(10_000))
    fd = extent.file.fd
    assert os.listdir(tmp_path) == []
    assert os.fstat(fd).st_nlink == 0
    disk.close()
    assert torch.equal(read(disk, extent), some(10_000)), "readable as long as the extent lives"
    del extent
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_extents_are_reused(disk):
    extents = [disk.write(some(BLOCK, seed)) for seed in range(4)]
    start = extents[1].start
    assert disk.nbytes_live == 4 * BLOCK
    del extents[1]
    assert disk.nbytes_live == 3 * BLOCK
    assert disk.write(some(BLOCK)).start == start
    extents.clear()
    assert disk.nbytes_live == 0
    assert disk.write(some(10)).start == 0
    assert disk.nbytes_peak == 4 * BLOCK


@pytest.mark.parametrize("at", [0, 4095, 4096, 99_999])
def test_a_changed_byte_is_an_error(disk, at):
    extent = disk.write(some(100_000))
    flip(disk, extent, at)
    with pytest.raises(CorruptPayload, match="checksum"):
        read(disk, extent)


def test_bytes_beyond_the_end_do_not_matter(disk):
    extent = disk.write(some(100))
    flip(disk, extent, 200)
    assert torch.equal(read(disk, extent), some(100))


def test_a_file_cut_short_is_an_error(disk):
    extent = disk.write(some(100_000))
    os.ftruncate(extent.file.fd, BLOCK)
    with pytest.raises(CorruptPayload, match="ends after"):
        read(disk, extent)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_device_says_so_and_takes_what_still_fits(disk, monkeypatch, code):
    pwrite = os.pwrite
    first, second = disk.write(some(BLOCK)), disk.write(some(BLOCK))

    def full(fd, data, at):
        if at >= 2 * BLOCK:
            raise OSError(code, os.strerror(code))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageFull, match=r"directory=\.\.\."):
        disk.write(some(BLOCK))
    del first
    again = disk.write(some(BLOCK, 9))
    assert torch.equal(read(disk, again), some(BLOCK, 9))
    with pytest.raises(StorageFull):
        disk.write(some(BLOCK))
    assert torch.equal(read(disk, second), some(BLOCK))


def test_other_errors_are_the_systems_own(disk, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "input/output error")

    extent = disk.write(some(100))
    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(OSError, match="input/output"):
        disk.write(some(100))
    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(CorruptPayload, match="input/output"):
        read(disk, extent)


def test_without_o_direct_and_o_tmpfile(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    disk = Disk(tmp_path)
    extent = disk.write(some(3 * CHUNK))
    assert not extent.file.is_direct
    assert os.listdir(tmp_path) == []
    assert torch.equal(read(disk, extent), some(3 * CHUNK))
    disk.close()


def test_a_file_system_that_takes_o_direct_back(disk, monkeypatch):
    pwrite = os.pwrite

    def refuses(fd, data, at):
        if extent_file.is_direct:
            raise OSError(errno.EINVAL, "invalid argument")
        return pwrite(fd, data, at)

    extent_file = disk.write(some(1)).file
    extent_file.is_direct or pytest.skip("no O_DIRECT here")
    monkeypatch.setattr(os, "pwrite", refuses)
    assert torch.equal(read(disk, disk.write(some(9999))), some(9999))
    assert not extent_file.is_direct


def test_no_such_directory(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.*directory=\.\.\."):
        Disk(tmp_path / "nowhere")


def test_the_directory_may_go(tmp_path):
    disk = Disk(tmp_path / "own") if os.mkdir(tmp_path / "own") is None else None
    assert disk is not None
    extent = disk.write(some(5000))
    os.rmdir(tmp_path / "own")
    other = disk.write(some(5000, 1))
    assert torch.equal(read(disk, extent), some(5000)) and torch.equal(read(disk, other), some(5000, 1))
    disk.close()


def test_a_child_neither_writes_into_the_file_nor_reads_it(disk):
    extent = disk.write(some(BLOCK))
    pid = os.fork()
    if pid == 0:
        try:
            own = disk.write(some(BLOCK, 1))
            is_apart = own.file is not extent.file and own.start == extent.start
            is_right = torch.equal(read(disk, own), some(BLOCK, 1))
            try:
                read(disk, extent)
            except CorruptPayload as error:
                os._exit(0 if is_apart and is_right and "fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert torch.equal(read(disk, extent), some(BLOCK))


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None])
def test_no_file_is_left_whatever_the_ending(tmp_path, ending):
    data = some(100_000)  # here: torch's threads are gone in a child
    pid = os.fork()
    if pid == 0:
        disk = Disk(tmp_path)
        disk.write(data)
        if ending is not None:
            os.kill(os.getpid(), ending)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -(ending or 0)
    assert os.listdir(tmp_path) == []


def test_memory_is_not_taken_for_a_disk(monkeypatch):
    if not os.path.isdir("/dev/shm") or not is_in_memory("/dev/shm"):
        pytest.skip("no tmpfs here")
    assert not is_in_memory("/proc/self")
    monkeypatch.setattr(disk_module.tempfile, "gettempdir", lambda: "/dev/shm")
    assert default_directory() == "/var/tmp" or is_in_memory("/var/tmp")
