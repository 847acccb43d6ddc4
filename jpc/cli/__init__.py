"""The `jpc` command: `jpc train`, `jpc eval`, `jpc compare`, `jpc reproduce`, `jpc data`,
`jpc doctor`.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable

from .._extras import TRAIN
from .cache import set_up_cache
from .interrupt import INTERRUPTED as INTERRUPTED, answer_interrupts, ignore_late_threads


def main() -> None:
    """Runs the command line."""
    answer_interrupts()
    ignore_late_threads()
    set_up_cache()
    gc.set_threshold(50_000, 20, 20)  # Tracing makes many objects, and few cycles.
    try:
        _load()(prog_name="jpc")
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        _end(end.code)
    except KeyboardInterrupt:  # Before any command has begun.
        _end(INTERRUPTED)
    except BrokenPipeError:  # Nobody listens any more, as with head.
        _end(1)
    except OSError as error:  # What is said cannot be written, on a full disk.
        sys.stderr.write(f"jpc: {error.strerror}\n")
        _end(1)


def _load() -> Callable[..., None]:
    try:
        from .app import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"jpc: the command needs {error.name}: {TRAIN}.")
    return app


def _end(code: int) -> None:
    """At once: Python would take a second to take XLA down, and crash while that is computing."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
