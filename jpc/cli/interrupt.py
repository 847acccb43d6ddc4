"""Ctrl-C is answered by a thread: Python's own handler waits until XLA has compiled."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130
_SHOW_CURSOR = "\x1b[?25h"


def answer_interrupts() -> None:
    """From now on the first Ctrl-C is answered at once, and the second one ends the process."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listen = threading.Thread(target=_listen, args=(lambda: os.read(reader, 1),), daemon=True)
    listen.start()


def ignore_late_threads() -> None:
    """Threads of TensorStore find the loop closed that they were to tell of an error, which has
    been told: they say so at length, and in the middle of our line. So does asyncio.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def tell(raised: Any) -> None:
        if str(raised.exc_value) != "Event loop is closed":
            show(raised)

    sys.unraisablehook = tell


def _listen(read: Callable[[], bytes]) -> None:
    _wait(read)
    _say("\nstopping as soon as what is done is safe; Ctrl-C again stops at once")
    _wait(read)
    _say(("\n" + _SHOW_CURSOR) * sys.stderr.isatty() + "stopped")
    os._exit(INTERRUPTED)


def _wait(read: Callable[[], bytes]) -> None:
    while read() != bytes([signal.SIGINT]):
        pass


def _say(text: Any) -> None:
    """Not through Python's files, which the main thread may be writing to."""
    os.write(2, f"{text}\n".encode())
