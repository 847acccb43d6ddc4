"""The report of a [`jpc.fit`][] that was given a folder for it."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .folder import Record, RunFolder
from .report import Report, Status

_PAUSE = 10.0  # Seconds between two reports.


class Journal:
    """Writes down every epoch, and the report: every ten seconds, and when the run ends, however
    it does. A run that goes on from `earlier` epochs says so again.
    """

    def __init__(self, path: Path, epochs: int, earlier: Sequence[Record] | None):
        self._folder, self._epochs, self._written = RunFolder(path), epochs, 0.0
        if path.exists() and not path.is_dir():
            raise ValueError(f"report={str(path)!r} is a file: name a folder.")
        if self._folder.config.is_file():
            raise ValueError(f"report={str(path)!r} has a run of the command in it: name another.")
        if self._folder.metrics.is_file() and earlier is None:
            raise FileExistsError(
                f"report={str(path)!r} has the report of an earlier run: name another folder, or "
                "delete that one."
            )
        path.mkdir(parents=True, exist_ok=True)
        for record in earlier or ():
            self._folder.append(record)

    def note(self, record: Record) -> None:
        self._folder.append(record)
        if time.monotonic() - self._written > _PAUSE:
            self._report("running")

    def __enter__(self):
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._report("finished")
        else:
            self._report("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    def _report(self, status: Status) -> None:
        records, name = self._folder.read_metrics(), self._folder.path.resolve().name
        made = Report(records=records, status=status, epochs=self._epochs, name=name)
        self._folder.write_report(made.page(), made.drawings())
        self._written = time.monotonic()
