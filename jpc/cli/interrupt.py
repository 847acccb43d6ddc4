"""Ctrl-C is answered by a thread: Python's own handler waits until XLA has compiled."""

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
