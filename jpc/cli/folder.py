import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._claim import LOCK, hold
from .._files import write_whole
from .check import make_config
from .config import Config, ConfigError
from .svg import Drawing
from .toml import as_tables, read_tables, write_tables

Record = dict[str, Any]
_FILES = (
    "config.toml",
    "metrics.jsonl",
    "report.html",
    "accuracy.png",
    "energies.png",
    "samples.png",
    "data.json",
)


class RunFolder:
    """Where a run leaves what it did: its configuration, its metrics, its checkpoints, its
    pictures and its report.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config, self.metrics, self.report, *_ = (path / name for name in _FILES)
        self.data, self.figures = path / "data.json", path / "figures"
        self.checkpoints = path / "checkpoints"

    def begin(self, config: Config) -> None:
        """Makes room for a new run."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._clear()
        self.write_config(config)

    def write_config(self, config: Config) -> None:
        write_whole(self.config, write_tables(as_tables(config)))

    def read_config(self) -> Config:
        if not self.config.is_file():
            raise ConfigError(f"{self.path} is not the folder of a run: it has no config.toml.")
        return make_config(read_tables(self.config))

    def is_saved(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.newest() > 0

    def newest(self) -> int:
        """The number of the newest checkpoint: that of its steps and of the ends of its epochs."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return max((int(entry.name) for entry in found if entry.name.isdigit()), default=0)

    def append(self, record: Record) -> None:
        """Adds an epoch to the metrics, and cuts off before it what a run that was killed had
        written of this epoch and of later ones. It is on the disc when this returns.
        """
        with self.metrics.open("a+b") as file:
            file.seek(0)
            whole = (_parse(line) for line in file.read().splitlines(keepends=True))
            kept = [line for line, old in whole if old and old["epoch"] < record["epoch"]]
            file.truncate(sum(map(len, kept)))
            file.write(json.dumps(_without_nans(record)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_metrics(self) -> list[Record]:
        """The epochs that are done."""
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_bytes().splitlines(keepends=True)
        try:
            return [record for _, record in map(_parse, lines) if record]
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{self.metrics} is damaged: a line of it is not JSON, or of no epoch. Delete it."
            ) from None

    def write_report(self, page: str, drawings: Sequence[Drawing]) -> None:
        """The report, and its figures beside it."""
        self.figures.mkdir(exist_ok=True)  # In a folder that is still there.
        for drawing in drawings:
            write_whole(self.figures / f"{drawing.name}.svg", drawing.file())
        write_whole(self.report, page)

    def _clear(self) -> None:
        """Removes a run, and nothing that is not of a run."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for path in (self.checkpoints, self.figures):
            shutil.rmtree(path, ignore_errors=True)


def _parse(line: bytes) -> tuple[bytes, Record | None]:
    """A line, and what it says if it is whole."""
    record = json.loads(line) if line.endswith(b"\n") else None
    if record is not None and not (isinstance(record, dict) and "epoch" in record):
        raise ValueError("This is no record of an epoch.")
    return line, record


def _without_nans(tree: Any) -> Any:
    """JSON has no NaN and no infinities: `None` in their place."""
    if isinstance(tree, dict):
        return {name: _without_nans(entry) for name, entry in tree.items()}
    if isinstance(tree, list):
        return [_without_nans(entry) for entry in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def choose_folder(out: Path | None, dataset: str, *, overwrite: bool) -> RunFolder:
    """A folder for a new run: `runs/<dataset>-<n>` unless one is given. One that has something
    in it is refused, unless that is a run which may be overwritten.
    """
    if out is None:
        return RunFolder(_next_free(dataset))
    folder = RunFolder(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: name a folder.")
    if not (out.is_dir() and any(entry.name != LOCK for entry in out.iterdir())):
        return folder
    if not folder.config.is_file():
        raise ConfigError(f"--out {out} has files in it that are not of a run: name another.")
    if not overwrite:
        raise ConfigError(
            f"--out {out} has a run in it. Go on with that one: jpc train --resume {out}; "
            "delete it and start anew: --overwrite; or name another folder."
        )
    return folder


@contextlib.contextmanager
def take_folder(out: Path | None, dataset: str, *, overwrite: bool) -> Iterator[RunFolder]:
    """The same, made, and kept from all other processes."""
    folder = choose_folder(out, dataset, overwrite=overwrite)
    while not _make(folder.path, new=out is None):
        folder = choose_folder(out, dataset, overwrite=overwrite)
    try:
        with hold(folder.path):
            # Another run may have been here since; from now on there is none.
            yield choose_folder(folder.path, dataset, overwrite=overwrite)
    finally:
        with contextlib.suppress(OSError):
            folder.path.rmdir()  # If nothing came to be in it.


def _make(path: Path, *, new: bool) -> bool:
    """Makes a folder; not one that was there, if it is to be a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(exist_ok=not new)
    except FileExistsError:
        return False
    return True


def _next_free(dataset: str) -> Path:
    number = 1
    while (path := Path("runs") / f"{dataset}-{number}").exists():
        number += 1
    return path
