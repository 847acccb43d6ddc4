"""Ctrl-C is answered by a thread: Python's own handler waits until XLA has compiled, and what it
raises is lost or misread where it meets other people's code, as that of an import.

What schedulers send before they end a process, SIGTERM, counts as Ctrl-C.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

INTERRUPTED = 130
_ASKED_TO_END = bytes([signal.SIGINT]), bytes([signal.SIGTERM])
_SHOW_CURSOR = "\x1b[?25h"
_GRACE = 0.2  # Seconds, for a main thread that is ending by itself when we look.
_farewell: Callable[[], str] = lambda: "stopped"


def answer_interrupts() -> None:
    """From now on the first Ctrl-C is answered at once, and the second one ends the process. So
    does the first, unless somebody handles it who has something to save.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_at_once)
    signal.signal(signal.SIGTERM, _interrupt)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listen = threading.Thread(target=_listen, args=(lambda: os.read(reader, 1),), daemon=True)
    listen.start()


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Here Ctrl-C is an exception, for those who tidy up after it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def farewell(say: Callable[[], str]) -> Iterator[None]:
    """What is said if the process ends here. It stays so if it is interrupted here: the thread may
    get to say it only when the main thread has left.
    """
    global _farewell  # noqa: PLW0603  (there is one process)
    before, _farewell = _farewell, say
    try:
        yield
    except KeyboardInterrupt:
        before = say
        raise
    finally:
        _farewell = before


def ignore_late_threads() -> None:
    """Threads of TensorStore find the loop closed that they were to tell of an error, which has
    been told: they say so at length, and in the middle of our line. So does asyncio. So does
    Python of a Ctrl-C while JAX tidies up, where nothing can be raised.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def tell(raised: Any) -> None:
        late = str(raised.exc_value) == "Event loop is closed"
        if not (late or isinstance(raised.exc_value, KeyboardInterrupt)):
            show(raised)

    sys.unraisablehook = tell


def _listen(read: Callable[[], bytes]) -> None:
    _wait(read)
    if signal.getsignal(signal.SIGINT) in (_end_at_once, signal.SIG_IGN):
        time.sleep(_GRACE)
        _end(_farewell)
    _say("\nstopping as soon as what is done is safe; Ctrl-C again stops at once")
    _wait(read)
    _end(lambda: "stopped")


def _wait(read: Callable[[], bytes]) -> None:
    while read() not in _ASKED_TO_END:
        pass


def _end(say: Callable[[], str]) -> None:
    try:
        _say(("\n" + _SHOW_CURSOR) * sys.stderr.isatty() + say())
    finally:
        os._exit(INTERRUPTED)


def _end_at_once(*asked: Any) -> None:
    """The thread does it."""
    del asked


def _interrupt(*asked: Any) -> None:
    """As Ctrl-C does now. A shell lets processes in the background ignore that."""
    answer = signal.getsignal(signal.SIGINT)
    if callable(answer):
        answer(*asked)


def _say(text: Any) -> None:
    """Not through Python's files, which the main thread may be writing to."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
