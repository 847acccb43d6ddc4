"""A run has its folder to itself, by a lock that ends with the process, however that ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # On Windows nothing is locked.
    fcntl = None

LOCK = ".running"


class InUseError(RuntimeError):
    """Another process has the folder."""


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a folder. The file that says so is left behind by a kill, and
    by nothing else.
    """
    with contextlib.closing(_take(folder)):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()


def is_held(folder: Path) -> bool:
    """Whether a folder that was taken is still where it was."""
    return (folder / LOCK).exists()


def is_running(folder: Path) -> bool:
    """Whether a process holds a folder."""
    try:
        with (folder / LOCK).open() as file:
            return not _lock(file)
    except OSError:
        return False


def was_killed(folder: Path) -> bool:
    """Whether a process held it, and was killed."""
    return (folder / LOCK).exists() and not is_running(folder)


def _take(folder: Path) -> Any:
    path = folder / LOCK
    while True:
        file = path.open("a+")
        if not (_lock(file) or _lock_later(file)):
            file.close()
            raise InUseError(
                f"{folder} is in use by another run (process {path.read_text()}): wait for its "
                "end, or name another folder."
            )
        if _is(file, path):
            break
        file.close()
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _lock(file: Any) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # Some file systems lock nothing.
            pass
    return True


def _lock_later(file: Any) -> bool:
    """Somebody may only have looked."""
    time.sleep(0.1)
    return _lock(file)


def _is(file: Any, path: Path) -> bool:
    """Whether a file is still the one of that name: who held it may have deleted it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
