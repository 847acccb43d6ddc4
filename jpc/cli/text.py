"""Words that come from outside (names of files, of classes, of runs) for a terminal and a page."""

import contextlib
import html
import sys
import threading
from collections.abc import Iterator

_WHILE = 1.0  # Seconds for which nothing need be said.


def plain(text: object) -> str:
    """Text that does nothing but be read: what moves the cursor, hides or turns letters around is
    written as a code.
    """
    seen = lambda c: c.isprintable() or c in "\n\t"
    return "".join(c if seen(c) else c.encode("unicode_escape").decode() for c in str(text))


def say(text: object, *, err: bool = False) -> None:
    """Prints a line."""
    import typer  # noqa: PLC0415  (a page needs no command)

    typer.echo(plain(text), err=err)


@contextlib.contextmanager
def told(text: str, shown: bool = True, *, err: bool = False) -> Iterator[None]:
    """Says what goes on if it takes long."""
    timer = threading.Timer(_WHILE, lambda: say(text, err=err))
    timer.daemon = True
    if shown:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say_data(text: str) -> None:
    """Prints what another program may read: as it is, but for a terminal."""
    (say if sys.stdout.isatty() else print)(text)


def escape(text: str) -> str:
    """Text for a page or for a drawing, in an attribute or outside."""
    return html.escape(plain(text))
