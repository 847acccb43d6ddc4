"""From a figure's name to its files."""

import contextlib
import dataclasses
import datetime
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

import jpc
import jpc.data

from .._device import accelerated
from .._given import choice
from ..data._source import source_of
from ._cell import Cell, Store
from ._figures import FIGURES, SIZES, Figure, Size
from ._report import write_report
from ._train import run_cells


def reproduce(
    name: str,
    size: str = "default",
    out: Path = Path("reproduction"),
    *,
    run: bool = True,
    only: Callable[[Cell], bool] = lambda cell: True,
    minutes: float = math.inf,
    progress: bool = True,
) -> Path:
    """Runs what a figure of the paper needs, and writes `name.csv`, `.png`, `.pdf` and `.md` into
    a folder. Results are kept for each network: run again after an interruption, it goes on.

    **Arguments:**

    - `name`: one of [`jpc.experiments.FIGURES`][].
    - `size`: `"smoke"`, `"default"` or `"full"`, the paper's.
    - `out`: the folder.
    - `run`: whether to run what is missing, or only to write down what is there.
    - `only`: which of its networks to run.
    - `minutes`: after which no other one is begun.
    - `progress`: whether to show how far it is.

    **Returns:**

    The path of the `.md`.
    """
    figure, out = FIGURES[choice("figure", name, tuple(FIGURES))], Path(out)
    cells, store = figure.cells(SIZES[choice("size", size, tuple(SIZES))]), _open(out)
    known = any(_is_here(cell.dataset) for cell in cells) if run else store.rows(cells)
    digits = _on_digits(figure, SIZES["default"])
    if size == "default" and not known and any(map(only, digits)):
        cells = digits + cells
    missing: dict[str, str] = {}
    if run:
        if out.is_file():
            raise NotADirectoryError(f"{out} is a file: out must be a folder.")
        out.mkdir(parents=True, exist_ok=True)  # Or fail before anything is run.
        wanted = {cell.dataset for cell in cells if only(cell)}
        missing = _fetch(wanted, download=size == "full", progress=progress)
        mine = [cell for cell in cells if only(cell) and cell.dataset not in missing]
        jobs = plan([cell for cell in mine if not store.is_done(cell, _where())])
        _run(jobs, store, minutes, progress)
    # Read anew, for what others may have written.
    return write_report(name, figure, size, cells, _open(out).rows(cells), out, missing)


def _open(out: Path) -> Store:
    return Store(out / "cells.jsonl")


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """To be told to end is an interruption, too; and one that gets lost, since JAX ignores what is
    raised while it tidies up, is raised again by the function that is given.
    """
    asked = False

    def ask(*_: Any) -> NoReturn:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    first = threading.current_thread() is threading.main_thread()  # It alone gets signals.
    signals = [signal.SIGINT, signal.SIGTERM] if first else []
    before = [signal.signal(number, ask) for number in signals]
    try:
        yield check
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _is_here(dataset: str) -> bool:
    return jpc.data.where(dataset) is not None


def _on_digits(figure: Figure, size: Size) -> list[Cell]:
    """A figure's cells with the digits in the place of its first data set."""
    first = dataclasses.replace(figure, datasets=figure.datasets[:1])
    return first.cells(dataclasses.replace(size, dataset="digits"))


def _fetch(datasets: Iterable[str], *, download: bool, progress: bool) -> dict[str, str]:
    """Makes sure of the data before anything is run; returns what is not there, and why."""
    missing = {}
    for dataset in sorted(name for name in datasets if not _is_here(name)):
        missing[dataset] = f"{dataset} is not on this machine: jpc data fetch {dataset}."
        if download:
            with contextlib.suppress(FileNotFoundError):
                jpc.data.fetch(dataset, progress=progress)
                del missing[dataset]
    return missing


def plan(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Which cells are run at once, the quick ones first. An accelerator takes those of equal
    shape whose inference takes about as long together, at about the price of one.
    """
    together = _kind if accelerated() else (lambda cell: cell)
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(together(cell), []).append(cell)
    return sorted(groups.values(), key=_cost)


def _kind(cell: Cell) -> tuple:
    """What cells that are run at once have in common."""
    own = dict(dataset=source_of(cell.dataset).shape, seed=0, t1=0, dt=0)
    length = round(math.log(cell.evaluations, 4)) if cell.solver == "euler" else cell.t1
    return (*(dataclasses.asdict(cell) | own).values(), length)


def _cost(job: Sequence[Cell]) -> float:
    """About how long a job takes, in seconds: compiling, then one gradient after the other."""
    cell = max(job, key=lambda cell: cell.evaluations)
    gradients = (1000 if cell.steps is None else cell.steps) * cell.evaluations
    gradients += 80_000 if cell.measure == "gap" else 0  # To compare methods with.
    if accelerated():
        return 25.0 + 1e-5 * gradients * (5 + cell.hidden)
    return 5.0 + 5e-11 * gradients * cell.hidden * cell.width**2 * cell.batch


def _run(jobs: Sequence[Sequence[Cell]], store: Store, minutes: float, shown: bool) -> None:
    """Runs jobs with a line for each of them when it is done and, on a terminal, a bar."""
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))
    columns = (TaskProgressColumn(), *times, BarColumn(20), name)
    options: Any = dict(transient=True, expand=True, speed_estimate_period=3600)
    costs = [_cost(job) for job in jobs]
    with Progress(*columns, disable=not shown, **options) as bar, _interruptible() as check:
        say = lambda text: bar.console.print(text, highlight=False, soft_wrap=True)
        task, begin = bar.add_task("", total=sum(costs)), time.monotonic()
        if shown and jobs:
            say(f"{sum(map(len, jobs))} networks to train, about {_duration(sum(costs))}")
        for number, (job, cost) in enumerate(zip(jobs, costs, strict=True), 1):
            if time.monotonic() - begin > 60 * minutes:
                break

            def advance(part: float, cost: float = cost) -> None:
                check()
                bar.advance(task, part * cost)

            bar.update(task, description=_describe(job))
            store.add(job, run_cells(job, advance), _where())
            if shown:
                spent = time.monotonic() - begin
                left = spent * (sum(costs) / sum(costs[:number]) - 1)
                told = f"{_duration(spent)}, {_duration(left)} left"
                say(f"{number}/{len(jobs)}  {_describe(job)}  {told}")


def _duration(seconds: float) -> str:
    """`40 s`, `5 min`, `2 h`."""
    units = {"h": 3600, "min": 60, "s": 1}
    name = next((name for name, unit in units.items() if seconds >= 2 * unit), "s")
    return f"{seconds / units[name]:.0f} {name}"


def _describe(job: Sequence[Cell]) -> str:
    """`mnist: H = 5, euler, T = 50, dt = 0.5; euler, T = 50, dt = 0.1; seeds 0, 1, 2`."""
    names, settings, seeds = (
        list(dict.fromkeys(map(say, job)))
        for say in (lambda c: c.dataset, lambda c: c.setting, lambda c: str(c.seed))
    )
    listed = "; ".join(settings if len(settings) < 3 else [settings[0], "...", settings[-1]])
    return f"{', '.join(names)}: H = {job[0].hidden}, {listed}; seeds {', '.join(seeds)}"


def _where() -> dict[str, str]:
    """On what cells are run; see `run_cells` for the precision of its products."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": jax.devices()[0].device_kind,
        "products": jnp.result_type(float).name,
        "jax": jax.__version__,
        "jpc": jpc.__version__,
    }
