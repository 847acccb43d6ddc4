import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from .._extras import TRAIN
from .progress import Record


class NoReport:
    """What nobody asked for."""

    def note(self, record: Record) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def choose_report(
    folder: str | os.PathLike | None, epochs: int, earlier: Sequence[Record] | None
) -> Any:
    """What writes down each epoch, after those of a run that is gone on with. Of several
    processes only the first one does.
    """
    if folder is None or jax.process_index() > 0:
        return NoReport()
    try:
        from ..cli.journal import Journal  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(f"report= needs {error.name}: {TRAIN}.") from None
    return Journal(Path(folder), epochs, earlier)
