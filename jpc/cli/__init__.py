"""The `jpc` command: `jpc train`, `jpc eval`, `jpc compare`, `jpc reproduce`, `jpc data`,
`jpc doctor`.
"""

import os
import sys

from .._extras import TRAIN
from .cache import set_up_cache
from .interrupt import INTERRUPTED, answer_interrupts, ignore_late_threads


def main() -> None:
    """Runs the command line."""
    answer_interrupts()
    ignore_late_threads()
    set_up_cache()
    try:
        from .app import app  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.exit(f"jpc: the command needs {error.name}: {TRAIN}.")
    try:
        app(prog_name="jpc")
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # The interpreter would crash while XLA is still computing.
