"""From a figure's name to its files."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jpc.data

from .._device import accelerated
from .._given import choice
from .._jobs import run_jobs, where
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
    a folder. The results of each network are kept, so that you can call it again after an
    interruption, and it continues.

    **Arguments:**

    - `name`: one of [`jpc.experiments.FIGURES`][].
    - `size`: `"smoke"`, `"default"` or `"full"`, the paper's.
    - `out`: the folder.
    - `run`: whether to run what is missing, or only to write down what is there.
    - `only`: which of its networks to run.
    - `minutes`: after this time it starts no other network.
    - `progress`: whether to show the progress.

    **Returns:**

    The path of the `.md`.

    **Example:**

    ```python
    from pathlib import Path

    from jpc.experiments import reproduce

    page = reproduce("fig1", size="smoke", out=Path("results"))
    ```
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
        jobs = plan([cell for cell in mine if not store.is_done(cell, where())])
        work = lambda job, advance: store.add(job, run_cells(job, advance), where())
        said: Any = dict(cost=_cost, describe=_describe, size=len)
        run_jobs(jobs, work, **said, minutes=minutes, shown=progress)
    # Read anew, for what others may have written.
    return write_report(name, figure, size, cells, _open(out).rows(cells), out, missing)


def _open(out: Path) -> Store:
    return Store(out / "cells.jsonl")


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


def _describe(job: Sequence[Cell]) -> str:
    """`mnist: H = 5, euler, T = 50, dt = 0.5; euler, T = 50, dt = 0.1; seeds 0, 1, 2`."""
    names, settings, seeds = (
        list(dict.fromkeys(map(say, job)))
        for say in (lambda c: c.dataset, lambda c: c.setting, lambda c: str(c.seed))
    )
    listed = "; ".join(settings if len(settings) < 3 else [settings[0], "...", settings[-1]])
    return f"{', '.join(names)}: H = {job[0].hidden}, {listed}; seeds {', '.join(seeds)}"
