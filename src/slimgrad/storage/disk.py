"""Bytes on disk: extents in one file without a name, each with a checksum.

    extent = disk.write(payload)           raises StorageFull, or OSError from the system
    disk.read(extent, out)                 fills `out`, or raises CorruptPayload: never other bytes than were written
    disk.close()                           the file is gone when its last extent dies

Note [No file left behind]. The file has no name from the beginning (O_TMPFILE; elsewhere it is unlinked right after it
was made), so the system removes it when the process ends, however it ends.

Note [Past the page cache]. Bytes that leave the arena and stay in the page cache have not left memory. Where the file
system can (O_DIRECT), they are written and read without it: by way of one small aligned buffer on the way out, straight
into an aligned buffer on the way in. Elsewhere each extent is flushed and its pages are dropped.

Note [After a fork]. Parent and child would write into one file. The child therefore closes it at once and begins one
of its own; extents from before the fork are the parent's, which may reuse them, so the child cannot read them.

An extent's range comes back like a range of the heap: its destructor appends to a deque and takes no lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import threading
import weakref
import zlib
from collections import deque

import numpy as np
import torch

from slimgrad.errors import ConfigError, CorruptPayload, StorageFull
from slimgrad.storage.gaps import Gaps
from slimgrad.storage.pages import round_up, unlock_in_child

BLOCK = 4096  # bytes: O_DIRECT wants addresses, lengths and offsets in multiples of the device's block
CHUNK = 1 << 22  # bytes that are copied to the aligned buffer, summed and written at a time
FILE_SIZE = 1 << 46  # of which extents are cut; only what is written takes room
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
IN_MEMORY = frozenset({"tmpfs", "ramfs"})  # file systems
ADVICE = "choose another directory: slimgrad.Swap(tier='disk', directory=...)"


class Extent:
    """Bytes in a file; the range is free again when this object dies."""

    __slots__ = ("__weakref__", "checksum", "end", "file", "nbytes", "start")

    def __init__(self, file: File, start: int, end: int, nbytes: int) -> None:
        self.file, self.start, self.end, self.nbytes = file, start, end, nbytes
        self.checksum = 0

    def __del__(self) -> None:
        self.file.dead.append((self.start, self.end))


class File:
    """One nameless file. Disk and extents hold it; it is closed with the last of them."""

    def __init__(self, directory: str) -> None:
        self.fd, self.is_direct = _open(directory)
        self.gaps = Gaps(FILE_SIZE)
        self.dead: deque[tuple[int, int]] = deque()
        self.limit = FILE_SIZE  # below it there is room on the device
        _FILES.add(self)

    def reserve(self, nbytes: int) -> Extent:
        self.bury()
        size = round_up(nbytes, BLOCK) or BLOCK
        start = self.gaps.cut(size)
        if start < 0 or start + size > self.limit:
            if start >= 0:
                self.gaps.mend(start, start + size)
            raise StorageFull(f"disk: expected room for {size:,} bytes, got none; {ADVICE}")
        return Extent(self, start, start + size, nbytes)

    def bury(self) -> None:
        """Make ranges free whose extents have died."""
        while self.dead:
            self.gaps.mend(*self.dead.popleft())

    def pass_by_cache(self, extent: Extent) -> None:
        """Take an extent out of the page cache; see Note [Past the page cache]."""
        if not self.is_direct and hasattr(os, "posix_fadvise"):
            os.fdatasync(self.fd)
            os.posix_fadvise(self.fd, extent.start, extent.end - extent.start, os.POSIX_FADV_DONTNEED)

    def use_cache(self) -> None:
        """Go without O_DIRECT: some file systems promise it and refuse later."""
        import fcntl

        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self.is_direct = False

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            with contextlib.suppress(OSError):
                self.close()


class Disk:
    """Extents in a file of this process. Thread-safe."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = os.fspath(directory) if directory is not None else default_directory()
        self.lock = threading.Lock()
        self._staging: np.ndarray | None = None
        self.nbytes_peak = 0
        try:
            self._file: File | None = File(self.directory)
        except OSError as error:
            raise ConfigError(
                f"expected a directory in which files can be made, got {self.directory!r}: {error}; {ADVICE}"
            ) from error
        unlock_in_child(self)

    def write(self, payload: torch.Tensor) -> Extent:
        """Return the extent that now holds the bytes of a one-dimensional uint8 tensor."""
        with self.lock:
            file = self._own_file()
            extent = file.reserve(payload.numel())
            try:
                self._write_all(file, extent, payload)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                file.limit = extent.start
                raise StorageFull(
                    f"disk: expected room for {extent.nbytes:,} bytes in {self.directory}, got: {error}; {ADVICE}"
                ) from error
            self.nbytes_peak = max(self.nbytes_peak, file.gaps.top)
            return extent

    def read(self, extent: Extent, out: torch.Tensor) -> None:
        """Fill `out`, of `extent.nbytes` bytes in memory that begins and ends at a whole BLOCK."""
        size = extent.end - extent.start
        room = memoryview((ctypes.c_char * size).from_address(out.data_ptr())).cast("B")
        if extent.file.fd < 0:
            raise CorruptPayload(
                "disk: expected bytes that this process wrote, got bytes from before a fork; "
                "run forward and backward in the same process"
            )
        try:
            _read_all(extent.file.fd, room, extent.start, extent.nbytes)
        except OSError as error:
            raise CorruptPayload(f"disk: expected {extent.nbytes:,} bytes at {extent.start}, got: {error}") from error
        extent.file.pass_by_cache(extent)
        checksum = zlib.crc32(room[: extent.nbytes])
        if checksum != extent.checksum:
            raise CorruptPayload(
                f"disk: expected bytes with the checksum {extent.checksum:08x} at {extent.start}, got {checksum:08x}: "
                f"somebody else wrote there, or the device fails; {ADVICE}"
            )

    @property
    def nbytes_live(self) -> int:
        """Bytes of the file that are in use."""
        with self.lock:
            if self._file is None:
                return 0
            self._file.bury()
            gaps = self._file.gaps
            return gaps.top - sum(end - start for start, end in gaps.gaps[:-1])

    def close(self) -> None:
        """Let go of the file; what still has extents in it can be read."""
        with self.lock:
            self._file, self._staging = None, None

    def _own_file(self) -> File:
        if self._file is None or self._file.fd < 0:
            self._file = File(self.directory)
        return self._file

    def _write_all(self, file: File, extent: Extent, payload: torch.Tensor) -> None:
        if self._staging is None:
            self._staging = np.frombuffer(mmap.mmap(-1, CHUNK), dtype=np.uint8)
        source = payload.numpy()
        for at in range(0, extent.nbytes, CHUNK):
            piece = source[at : at + CHUNK]
            staged = self._staging[: round_up(len(piece), BLOCK)]
            np.copyto(staged[: len(piece)], piece)  # numpy, zlib and pwrite all let other threads run meanwhile
            extent.checksum = zlib.crc32(staged.data[: len(piece)], extent.checksum)
            _write_piece(file, staged.data, extent.start + at)
        file.pass_by_cache(extent)


def default_directory() -> str:
    """Return the system's directory for temporary files, or the next best where that one is memory."""
    directory = tempfile.gettempdir()
    if not is_in_memory(directory):
        return directory
    return next((d for d in ("/var/tmp",) if os.access(d, os.W_OK) and not is_in_memory(d)), directory)


def is_in_memory(directory: str) -> bool:
    """Return whether files in this directory are memory (tmpfs); False where the system does not tell."""
    try:
        device = os.stat(directory).st_dev
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                mount, _, source = line.partition(" - ")
                if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                    return source.split()[0] in IN_MEMORY
    except (OSError, IndexError):
        pass
    return False


def _open(directory: str) -> tuple[int, bool]:
    """Return a nameless file in the directory, and whether it goes past the page cache."""
    direct = getattr(os, "O_DIRECT", 0)
    if hasattr(os, "O_TMPFILE"):
        for flags in (direct, 0) if direct else (0,):
            try:
                return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | flags, 0o600), bool(flags)
            except OSError as error:  # EINVAL: no O_DIRECT; EOPNOTSUPP, EISDIR: no O_TMPFILE
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR):
                    raise
    fd, name = tempfile.mkstemp(prefix="slimgrad-", dir=directory)
    os.unlink(name)
    return fd, False


def _write_piece(file: File, piece: memoryview, at: int) -> None:
    while piece:
        try:
            n = os.pwrite(file.fd, piece, at)
        except OSError as error:
            if error.errno != errno.EINVAL or not file.is_direct:
                raise
            file.use_cache()
            continue
        piece, at = piece[n:], at + n


def _read_all(fd: int, room: memoryview, at: int, nbytes: int) -> None:
    done = 0
    while done < nbytes:
        n = os.preadv(fd, [room[done:]], at + done)
        if n <= 0:
            raise OSError(errno.EIO, f"the file ends after {done:,} bytes")
        done += n


_FILES: weakref.WeakSet[File] = weakref.WeakSet()


def _close_in_child() -> None:  # Note [After a fork]
    for file in list(_FILES):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
