"""Files that are whole or not there: written beside their place, forced to the disk, then renamed over it.

A process that is killed, or a disk that is full, leaves what was there before; nobody ever reads half a file. A place
where nothing can be written is the caller's mistake (ConfigError), a disk without room is nobody's (StorageFull).
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from slimgrad.errors import ConfigError, StorageFull

try:
    import fcntl
except ImportError:  # no such locks there
    fcntl = None

NO_PLACE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT})


def make_folder(folder: Path) -> None:
    """Make the folder and those above it, where they are not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_place(folder, error) from error


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let no other process have the folder meanwhile; ConfigError where one has it. A process that dies lets go."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise ConfigError(
            f"expected a folder that no other process writes to, got {folder}, in which one is training; "
            "wait until it has ended, or use another --out"
        ) from error
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Let `write(file)` make the content of `path`; StorageFull, with the old content in place, where it cannot."""
    make_folder(path.parent)
    _remove_parts_of_the_dead(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError when its stream breaks
        if isinstance(error.__context__, KeyboardInterrupt):  # ... which a second Ctrl-C does too
            raise error.__context__ from None
        if isinstance(error, OSError) and error.errno in NO_PLACE:
            raise _no_place(path, error) from error
        kept = f"the {path.name} written before is still whole" if path.exists() else "nothing was written"
        raise StorageFull(f"expected room for {path}, got {error}; {kept}; free some space in {path.parent}") from error
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_json(path: Path, content: object) -> None:
    """Write plain numbers, lists and dicts; NaN and infinities are refused, since not every reader knows them."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def cache_folder() -> Path:
    """Return where downloads are kept: $XDG_CACHE_HOME/slimgrad, or ~/.cache/slimgrad."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slimgrad"


def _remove_parts_of_the_dead(path: Path) -> None:
    """Remove what processes that were killed had written beside this path."""
    if os.name != "posix":  # elsewhere os.kill(pid, 0) does more than ask
        return
    for part in path.parent.iterdir():
        name, _, number = part.name.removesuffix(".part").rpartition(".")
        if part.name.endswith(".part") and name == f".{path.name}" and number.isdecimal() and not _lives(int(number)):
            part.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's
    return True


def _no_place(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"expected a place where {path} can be written, got {error}; choose another")


def _sync_folder(folder: Path) -> None:
    """Make the new name itself last, where the system has folders that can be synced."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
