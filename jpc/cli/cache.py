"""What was compiled once is kept for the next run, by JAX's own cache."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import Any

LIMIT = 2**30  # Bytes, of which the oldest are deleted first.


def cache_folder() -> Path:
    """`jpc/compiled` where the user's caches are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jpc" / "compiled"


def set_up_cache() -> None:
    """Turns the cache on, before JAX is imported, unless it was told where that is. Programs with
    callbacks are not kept: checks of the libraries that ours are made of leave NaNs instead.
    """
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    folder = cache_folder()
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        prune(folder, LIMIT)
    except OSError:
        return  # It only makes the next start faster.
    if os.access(folder, os.W_OK):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        _forget_what_is_damaged(folder)


def prune(folder: Path, limit: int) -> None:
    """Deletes the oldest programs until the others are no larger than that."""
    files = [(entry.stat(), entry) for entry in folder.iterdir() if entry.is_file()]
    size = sum(stat.st_size for stat, _ in files)
    for stat, entry in sorted(files, key=lambda pair: pair[0].st_mtime):
        if size <= limit:
            break
        entry.unlink(missing_ok=True)
        size -= stat.st_size


def _forget_what_is_damaged(folder: Path) -> None:
    """JAX warns of a file that a kill or a full disk has cut short, and never writes it again."""
    show = warnings.showwarning

    def look(message: Any, *args: Any, **named: Any) -> None:
        said = str(message)
        if "persistent compilation cache entry" not in said:
            return show(message, *args, **named)
        name = said.partition("'")[2].partition("'")[0]
        with contextlib.suppress(OSError):
            for entry in folder.glob(f"{name}-*"):
                entry.unlink(missing_ok=True)

    warnings.showwarning = look
