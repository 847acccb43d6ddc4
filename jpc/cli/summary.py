"""What came out of a sweep: a table, a picture, and the best setting."""

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from .._files import write_whole
from .folder import Record
from .grid import Setting, Sweep, describe_setting, show
from .interrupt import INTERRUPTED, raised
from .sweep import Result, Run, choose_sweep_folder, command_of, run_sweep
from .text import say

_WORDS = {
    "test_acc": "test accuracy (%)",
    "test_loss": "test loss",
    "val_acc": "validation accuracy (%)",
    "val_loss": "validation loss",
}


class Row(NamedTuple):
    """One setting: what it is, and what came out for each seed. `errors` are of those that
    failed.
    """

    setting: Setting
    given: Setting
    records: list[Record]
    errors: list[str]

    def values(self, metric: str) -> list[float]:
        return [r[metric] for r in self.records if r.get(metric) is not None]

    def mean(self, metric: str) -> float | None:
        values = self.values(metric)
        return statistics.fmean(values) if values and not self.errors else None

    def spread(self, metric: str) -> float | None:
        """The standard deviation over seeds."""
        values = self.values(metric)
        return statistics.stdev(values) if len(values) > 1 else None

    def show(self, metric: str) -> str:
        """`96.2 ± 0.4`."""
        if (mean := self.mean(metric)) is None:
            return "failed" if self.errors else "-"
        spread, digits = self.spread(metric), 1 if metric.endswith("acc") else 3
        after = "" if spread is None else f" ± {spread:.{digits}f}"
        return f"{mean:.{digits}f}{after}"


class Summary(NamedTuple):
    """The rows of a sweep, the best one first, the metric that says so and the one to report."""

    rows: list[Row]
    by: str
    headline: str
    axes: tuple[str, ...]

    @property
    def best(self) -> Row | None:
        return self.rows[0] if self.rows and self.rows[0].mean(self.by) is not None else None

    def columns(self) -> list[str]:
        return list(dict.fromkeys([self.by, self.headline]))

    def table(self) -> str:
        heads = [*(axis.replace("_", "-") for axis in self.axes), *self.columns()]
        lines = [
            [*(show(row.setting[axis]) for axis in self.axes), *map(row.show, self.columns())]
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        pad = lambda line: "  ".join(f"{c:{w}}" for c, w in zip(line, widths, strict=True))
        return "\n".join(pad(line).rstrip() for line in (heads, *lines))

    def csv(self) -> str:
        """A line for each run."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ("val_acc", "val_loss", "test_acc", "test_loss", "epoch", "seconds")
        writer.writerow([*self.axes, "seed", *names])
        for row in self.rows:
            for i, record in enumerate(row.records):
                setting = [row.setting[axis] for axis in self.axes]
                writer.writerow([*setting, record.get("seed", i), *map(record.get, names)])
        return text.getvalue()

    def as_json(self) -> dict[str, Any]:
        rows = [
            dict(row.setting, seeds=len(row.records), errors=row.errors)
            | {name: row.mean(name) for name in self.columns()}
            | {f"{name}_sd": row.spread(name) for name in self.columns()}
            for row in self.rows
        ]
        command = None if self.best is None else command_of(self.best.given)
        return dict(rows=rows, by=self.by, command=command)

    def say_best(self) -> str:
        """One line: what is best, how good it is, and how to train it."""
        if (best := self.best) is None:
            return "No setting trained to its end: see the errors above."
        seeds = len(best.records)
        over = f" over {seeds} seeds" if seeds > 1 else ""
        good = f"{_WORDS[self.headline].removesuffix(' (%)')} {best.show(self.headline)}"
        unit = " %" if self.headline == "test_acc" else ""
        what = f"best: {describe_setting(best.setting)}, " if self.axes else ""
        return f"{what}{good}{unit}{over}; to train it: {command_of(best.given)}"

    def caution(self) -> str:
        if self.by.startswith("val_") or len(self.rows) == 1:
            return ""
        return (
            "The test set chose it, which makes its number a little too good: with --validation "
            "0.1 a validation set chooses."
        )

    def plot(self) -> bytes:
        """A panel for each option: a point for each setting, and the best of each value."""
        from matplotlib.figure import Figure  # noqa: PLC0415

        figure = Figure(figsize=(5.5 * len(self.axes), 4), layout="constrained")
        panels: Any = figure.subplots(1, len(self.axes), squeeze=False)[0]
        for panel, axis in zip(panels, self.axes, strict=True):
            self._plot(panel, axis)
        panels[0].set_ylabel(_WORDS[self.by])
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()

    def _plot(self, panel: Any, axis: str) -> None:
        rows = [row for row in self.rows if row.mean(self.by) is not None]
        values = sorted({row.setting[axis] for row in rows}, key=_order)
        numbers = all(_is_number(value) for value in values)
        place = {value: value if numbers else i for i, value in enumerate(values)}
        means: list[Any] = [row.mean(self.by) for row in rows]
        spreads = [row.spread(self.by) or 0.0 for row in rows]
        xs = [place[row.setting[axis]] for row in rows]
        panel.errorbar(
            xs, means, spreads, fmt="o", color="0.6", markersize=4, linewidth=1, label="settings"
        )
        choose = max if self.by.endswith("acc") else min
        best = [choose(m for x, m in zip(xs, means, strict=True) if x == place[v]) for v in values]
        panel.plot([place[v] for v in values], best, "o-", linewidth=2, label="best")
        if numbers and len(values) > 1 and min(values) > 0 and max(values) >= 8 * min(values):
            panel.set_xscale("log")
        if not numbers or len(values) <= 6:
            panel.set_xticks([place[v] for v in values], [show(v) for v in values])
            panel.minorticks_off()
        panel.set_xlabel(axis.replace("_", "-"))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
        if len(self.axes) > 1:
            panel.legend(frameon=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: Any) -> tuple[bool, Any]:
    return (False, value) if _is_number(value) else (True, str(value))


def summarise(sweep: Sweep, runs: Sequence[Run], results: Mapping[str, Result]) -> Summary:
    """Groups the runs of a sweep by what they are but for the seed."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        setting = {axis: run.given[axis] for axis in sweep.axes}
        grouped.setdefault(describe_setting(setting), []).append(run)
    rows = []
    for group in grouped.values():
        found = [(run, results[run.name]) for run in group]
        records = [dict(r["record"], seed=run.given["seed"]) for run, r in found if "record" in r]
        errors = [r["error"] for _, r in found if "error" in r]
        first = group[0].given
        given = first if sweep.fixed.get("seed") is not None else _without_seed(first)
        rows.append(Row({axis: first[axis] for axis in sweep.axes}, given, records, errors))
    everything = [record for row in rows for record in row.records]
    kind = "acc" if everything and all("test_acc" in r for r in everything) else "loss"
    validated = bool(everything) and all(f"val_{kind}" in r for r in everything)
    by = f"val_{kind}" if validated else f"test_{kind}"
    sign = -1 if kind == "acc" else 1
    key = lambda row: (row.mean(by) is None, sign * (row.mean(by) or 0.0))
    return Summary(sorted(rows, key=key), by, f"test_{kind}", tuple(sweep.axes))


def _without_seed(given: Setting) -> Setting:
    return {name: value for name, value in given.items() if name != "seed"}


def sweep_and_tell(
    sweep: Sweep, out: Path | None, kind: str, jobs: int, shown: bool, as_json: bool
) -> None:
    """Runs it, and says what came out."""
    folder = choose_sweep_folder(out, sweep, kind)
    try:
        with raised():
            results = run_sweep(sweep, folder, jobs=jobs, tell=say if shown else lambda text: None)
    except KeyboardInterrupt:
        say("\nWhat is done is kept: the same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    found = summarise(sweep, folder.runs(sweep), results)
    write_whole(folder.path / "sweep.csv", found.csv())
    if found.axes and found.best is not None:
        write_whole(folder.path / "sweep.png", found.plot())
    failed = [name for name, result in results.items() if "error" in result]
    if as_json:
        say(json.dumps(found.as_json() | dict(folder=str(folder.path), failed=failed)))
    elif shown:
        say(f"\n{found.table()}\n\n{found.say_best()}")
        say(f"{found.caution()}\n".lstrip() + f"table and picture: {folder.path}")
    if failed:
        killed = all("again" in results[name] for name in failed)
        again = (
            "the same command goes on" if killed else f"delete {folder.path / failed[0]} to retry"
        )
        say(f"jpc: {len(failed)} of {len(results)} runs failed: {again}.", err=True)
        raise typer.Exit(1)
