from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .config import ConfigError
from .folder import Record, RunFolder
from .toml import as_tables

_SCORES = ("test_acc", "test_r2", "test_loss")


class Comparison(NamedTuple):
    """Several runs: a row of a table for each, and what was recorded of each."""

    rows: list[dict[str, Any]]
    records: Mapping[str, Sequence[Record]]

    def table(self) -> str:
        """The runs one below the other or side by side, whichever is narrower."""
        names = list(self.rows[0])
        below = [names, *([_cell(row[name]) for name in names] for row in self.rows)]
        beside = list(map(list, zip(*below, strict=True)))
        return min(_columns(below), _columns(beside), key=lambda text: text.index("\n"))

    def plot(self) -> bytes:
        from .plot import plot_runs  # noqa: PLC0415

        shared = lambda name: all(name in records[-1] for records in self.records.values())
        return plot_runs(self.records, next(filter(shared, ("test_acc", "test_r2")), "test_loss"))


def _columns(cells: list[list[str]]) -> str:
    """Rows of cells in columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (zip(row, widths, strict=True) for row in cells)
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in line) for line in lines)


def compare_runs(folders: Sequence[RunFolder]) -> Comparison:
    """How well runs did, and in which options they differ."""
    options = [_flatten(as_tables(folder.read_config())) for folder in folders]
    records = {str(folder.path): folder.read_metrics() for folder in folders}
    if empty := [name for name, lines in records.items() if not lines]:
        raise ConfigError(f"{empty[0]} has nothing to compare: no epoch of it is done.")
    scores = [name for name in _SCORES if any(name in lines[-1] for lines in records.values())]
    different = [name for name in _all(options) if len({o.get(name) for o in options}) > 1]
    rows = [
        dict(run=name, **_result(lines, scores), **{n: given.get(n) for n in different})
        for (name, lines), given in zip(records.items(), options, strict=True)
    ]
    return Comparison(rows, records)


def _flatten(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{t}.{key}": value for t, entries in tables.items() for key, value in entries.items()}


def _all(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """All names, each once, in order."""
    return list(dict.fromkeys(name for given in options for name in given))


def _result(records: Sequence[Record], scores: Sequence[str]) -> dict[str, Any]:
    last = records[-1]
    seconds = round(sum(record["seconds"] for record in records), 1)
    named = {name: last.get(name) for name in ("epoch", *scores)}
    error = last["diagnosis"]["certificate"].get("gradient_error")
    return dict(**named, seconds=seconds, gradient_error=error)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
