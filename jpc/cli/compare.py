import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._files import write_whole
from .._significance import Sample, judge
from .config import ENTRIES, ConfigError
from .folder import Record, RunFolder
from .metrics import METRICS, more_is_better, most_of, name_metric
from .page import figures, heading, note, page, pairs, say, section, table as page_table
from .svg import Drawing, Line, chart
from .toml import as_tables

_SEED, _MOST_TOLD = "training.seed", 3
# Runs that differ in these did not take the same test, or not with the same loss.
_TEST = ("data.dataset", "data.target", "data.leave_out", "data.image_size")
_LOSS = (*_TEST, "data.task", "energy.loss")


class Group(NamedTuple):
    """Runs that differ in nothing but the seed, by what they have that others do not."""

    name: str
    runs: list[Sequence[Record]]

    def sample(self, metric: str) -> Sample:
        """What came out at the end, of the runs that did not diverge."""
        ends = [records[-1].get(metric) for records in self.runs]
        return Sample(self.name, [end for end in ends if end is not None])

    def line(self, metric: str) -> Line:
        """The mean over the runs after each epoch, with a band of one deviation, as far as there
        can be values.
        """
        epochs = sorted({record["epoch"] for records in self.runs for record in records})
        rows = [[r.get(metric) for rs in self.runs for r in rs if r["epoch"] == e] for e in epochs]
        samples = [Sample("", [y for y in row if y is not None]) for row in rows]
        means = [_finite(sample.mean()) for sample in samples]
        if len(self.runs) == 1:
            return Line(self.name, epochs, means)
        spreads = [np.nan_to_num(sample.deviation()) for sample in samples]
        pairs = list(zip(means, spreads, strict=True))
        low, high = (
            [None if m is None else min(float(m + sign * s), most_of(metric)) for m, s in pairs]
            for sign in (-1, 1)
        )
        return Line(f"{self.name} ({len(self.runs)} seeds)", epochs, means, low, high)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class Comparison(NamedTuple):
    """Several runs: a row of a table for each, the groups that they make, what all of them have
    in common, the metric that they are compared by, and the options that make its values those
    of different things.
    """

    rows: list[dict[str, Any]]
    groups: Sequence[Group] = ()
    shared: Mapping[str, Any] = {}
    metric: str = "test_acc"
    apart: Sequence[str] = ()

    def text(self) -> str:
        """Everything, for a terminal."""
        parts = [self.table()]
        if any(len(group.runs) > 1 for group in self.groups):
            parts.append(_columns([self._names(), *self._cells()]))
        return "\n\n".join([*parts, *filter(None, ["\n".join(self.verdict())])])

    def table(self) -> str:
        """The runs one below the other or side by side, whichever is narrower."""
        names = list(self.rows[0])
        below = [names, *([_cell(row[name]) for name in names] for row in self.rows)]
        beside = list(map(list, zip(*below, strict=True)))
        return min(_columns(below), _columns(beside), key=lambda text: text.index("\n"))

    def verdict(self) -> list[str]:
        """Which group is better, and whether that is chance."""
        if self.apart:
            said = (
                f"These runs differ in {', '.join(self.apart)}: their {name_metric(self.metric)}"
            )
            return [f"{said} is not of the same thing, and says nothing of which is better."]
        samples = [group.sample(self.metric) for group in self.groups]
        percent = self.metric.endswith("acc")
        up = more_is_better(self.metric)
        said = judge(samples, more_is_better=up, unit=" %" if percent else "")
        for group, sample in zip(self.groups, samples, strict=True):
            if lost := len(group.runs) - len(sample.values):
                said.append(
                    f"{group.name}: {lost} of {len(group.runs)} runs diverged, and do not count."
                )
        return said

    def plot(self, kind: str = "png") -> bytes:
        from .plot import plot_lines  # noqa: PLC0415

        return plot_lines([group.line(self.metric) for group in self.groups], self.metric, kind)

    def drawings(self) -> list[Drawing]:
        """A chart for each metric that all runs have."""
        drawn = []
        for metric in _common(self.groups):
            lines = [group.line(metric) for group in self.groups]
            name = name_metric(metric)
            banded = any(line.low for line in lines)
            text = (
                "A line is a mean over seeds, its band one standard deviation." if banded else ""
            )
            label = "%" if metric.endswith("acc") else name
            most = most_of(metric)
            drawn += chart(name.capitalize(), lines, "epoch", label, most=most, note=text)
        return drawn

    def page(self) -> str:
        """A report of all of them."""
        name = name_metric(self.metric)
        title = f"{len(self.rows)} runs compared by {name}"
        cells = [[_cell(value) for value in row.values()] for row in self.rows]
        verdict = self.verdict() or [
            "Nothing to compare: these runs differ in nothing but the seed."
        ]
        spread = "Mean and standard deviation over seeds, after the last epoch."
        sections = [
            section(
                "Result",
                *map(say, verdict),
                note(spread),
                page_table(self._names(), self._cells()),
            ),
            section("Learning curves", figures(self.drawings())),
            section("Runs", note(_RUNS), page_table(list(self.rows[0]), cells)),
            section("What they share", pairs(self.shared)),
        ]
        return page(
            title, heading(title, "; ".join(group.name for group in self.groups)), sections
        )

    def _names(self) -> list[str]:
        return ["group", "runs", f"mean {self.metric}", "deviation", "lowest", "highest"]

    def _cells(self) -> list[list[str]]:
        samples = [group.sample(self.metric) for group in self.groups]
        return [_summary(sample) for sample in samples]


_RUNS = (
    "Each run after its last epoch: accuracy in %, loss, seconds without compiling, the error of "
    "the learning gradient beside that at equilibrium (0 is exact), and the options they differ "
    "in."
)


def _summary(sample: Sample) -> list[str]:
    ends = (min(sample.values), max(sample.values)) if sample.values else (math.nan, math.nan)
    shown = (sample.mean(), sample.deviation(), *ends)
    cells = ["-" if math.isnan(value) else f"{value:.4g}" for value in shown]
    return [sample.name, str(len(sample.values)), *cells]


def _columns(cells: list[list[str]]) -> str:
    """Rows of cells in columns as wide as they need to be."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (zip(row, widths, strict=True) for row in cells)
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in line) for line in lines)


def compare_runs(folders: Sequence[RunFolder]) -> Comparison:
    """How well runs did, in which options they differ, and whether that matters."""
    names = [str(folder.path) for folder in folders]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{twice[0]} is given twice: name each run once.")
    options = [_flatten(as_tables(folder.read_config())) for folder in folders]
    records = [folder.read_metrics() for folder in folders]
    if empty := [name for name, lines in zip(names, records, strict=True) if not lines]:
        raise ConfigError(f"{empty[0]} has nothing to compare: no epoch of it is done.")
    scores = [m for m in METRICS[:-1] if any(m in lines[-1] for lines in records)]
    every = _all(options)
    different = [name for name in every if len({str(o.get(name)) for o in options}) > 1]
    rows = [
        dict(run=name, **_result(lines, scores), **{n: given.get(n) for n in different})
        for name, lines, given in zip(names, records, options, strict=True)
    ]
    groups = _group(names, options, records, [name for name in different if name != _SEED])
    shared = {name: options[0][name] for name in every if name not in different}
    metric = next(iter(_common(groups)), "loss")
    same = _LOSS if metric.endswith("loss") else _TEST
    return Comparison(rows, groups, shared, metric, [name for name in different if name in same])


def write_comparison(found: Comparison, path: Path) -> None:
    """A page, and its figures beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for drawing in found.drawings():
        write_whole(path.with_name(f"{path.stem}-{drawing.name}.svg"), drawing.file())
    write_whole(path, found.page())


def _group(
    names: Sequence[str],
    options: Sequence[Mapping[str, Any]],
    records: Sequence[Sequence[Record]],
    different: Sequence[str],
) -> list[Group]:
    """Runs by what they have that others do not, or by their first one if that is much. One with
    a seed that was there before would say the same again, and is left out.
    """
    found: dict[tuple[str, ...], dict[Any, Sequence[Record]]] = {}
    called: dict[tuple[str, ...], str] = {}
    # What only some of them have follows from a choice that all of them made.
    in_all = [name for name in different if all(o.get(name) is not None for o in options)]
    told_apart = {tuple(str(o.get(name)) for name in in_all) for o in options}
    every = {tuple(str(o.get(name)) for name in different) for o in options}
    chosen = in_all if len(told_apart) == len(every) else different
    for name, given, lines in zip(names, options, records, strict=True):
        key = tuple(str(given.get(name)) for name in different)
        found.setdefault(key, {}).setdefault(given.get(_SEED), lines)
        told = ", ".join(_describe(name, str(given.get(name))) for name in chosen) or "all runs"
        called.setdefault(key, told if len(chosen) <= _MOST_TOLD else name)
    return [Group(called[key], list(runs.values())) for key, runs in found.items()]


def _describe(name: str, value: str) -> str:
    flags = {f"{entry.table}.{entry.key}": entry.flag[2:] for entry in ENTRIES}
    return f"{flags.get(name, name)} {value.lower()}"


def _common(groups: Sequence[Group]) -> list[str]:
    """The metrics that all runs have, the one to compare by first."""
    every = [records for group in groups for records in group.runs]
    return [m for m in METRICS if every and all(m in records[-1] for records in every)]


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
