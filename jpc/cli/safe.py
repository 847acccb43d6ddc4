"""What is said when something goes wrong."""

import contextlib
import shlex
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from .._claim import is_running, was_killed
from .folder import RunFolder
from .interrupt import INTERRUPTED, farewell
from .text import say


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings to the user are lines like all others, without a place in the code."""
    show = warnings.showwarning

    def tell(message: Any, category: type[Warning], *args: Any, **named: Any) -> None:
        if category is UserWarning and "persistent compilation cache" not in str(message):
            say(f"jpc: {message}", err=True)
        else:
            show(message, category, *args, **named)

    warnings.showwarning = tell
    try:
        yield
    finally:
        warnings.showwarning = show


@contextlib.contextmanager
def kept_safe(folder: RunFolder, debug: bool) -> Iterator[None]:
    """Says what is left of a run that could not go on, and how to go on with it."""
    try:
        with farewell(lambda: _what_is_left(folder, "saved")):
            yield
    except KeyboardInterrupt:
        say(_what_is_left(folder, "saved"), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        if debug:
            raise
        where = error.filename or folder.path
        said = str(error) if error.strerror is None else f"{where}: {error.strerror}"
        left = _what_is_left(folder, "The run so far is safe")
        say(f"jpc: {said.rstrip('.')}. {left}", err=True)
        raise typer.Exit(1) from None


def _what_is_left(folder: RunFolder, saved: str) -> str:
    if not folder.path.is_dir() or (folder.is_saved() and not folder.config.is_file()):
        return "The folder of the run is gone."
    if not folder.is_saved():
        return "Nothing was saved yet."
    return f"{saved}; resume with: jpc train --resume {shlex.quote(str(folder.path))}"


def tell_of_killed(folders: Iterable[RunFolder]) -> None:
    """Says which of some runs did not come to their end."""
    for folder in folders:
        path = shlex.quote(str(folder.path))
        if was_killed(folder.path):
            done, of = len(folder.read_metrics()), folder.read_config().training.epochs
            said = f"was interrupted after {done} of {of} epochs: jpc train --resume {path}"
            say(f"{path} {said}", err=True)
        elif is_running(folder.path):
            say(f"{path} is still running", err=True)


def explain(error: Exception) -> str:
    """All that an error says, and how to find out where it came from."""
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, OSError):
        return str(error)
    from .._checks import words_of  # noqa: PLC0415  (JAX is slow to import)

    said = words_of(error) or type(error).__name__
    return said + ("\n" if "\n" in said else " ") + "(--debug shows where.)"
