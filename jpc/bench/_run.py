"""From the name of a table to its files."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jpc.data

from .._device import accelerated, rounds_products
from .._fit.folder import check_folder
from .._given import check_callable, check_flags, check_number, choice
from .._jobs import run_jobs, where
from .._lines import append_lines, read_lines
from .._types import Given
from ._report import write_report
from ._table import NETWORKS, SIZES, SUITES, Cell
from ._train import compiling, run_cell


def bench(
    name: Given[str],
    size: Given[str] = "default",
    out: Given[str | os.PathLike] = Path("bench"),
    *,
    run: Given[bool] = True,
    only: Given[Callable[[Cell], bool]] = lambda cell: True,
    minutes: Given[float] = math.inf,
    progress: Given[bool] = True,
) -> Path:
    """Trains the networks of a table, and writes `name.md`, `.csv`, `.png` and `.pdf` into a
    folder. The results of each network are kept, so that you can call it again after an
    interruption, and it continues.

    **Arguments:**

    - `name`: one of [`jpc.bench.SUITES`][].
    - `size`: `"smoke"`, `"default"`, or `"full"`, for an accelerator.
    - `out`: the folder.
    - `run`: whether to train what is missing, or only to write down what is there.
    - `only`: which of its networks to train.
    - `minutes`: after this time it starts no other network.
    - `progress`: whether to show the progress.

    **Returns:**

    The path of the `.md`.

    **Example:**

    ```python
    from pathlib import Path

    import jpc.bench

    page = jpc.bench.bench("deep", size="smoke", out=Path("results"))
    ```
    """
    check_folder("out", out)
    check_flags(run=run, progress=progress)
    check_callable("only", only, 'lambda cell: cell.network == "mlp"')
    if minutes != math.inf:
        check_number("minutes", minutes, least=0.0)
    suite, out = SUITES[choice("table", name, tuple(SUITES))], Path(out)
    cells, path = suite.cells(choice("size", size, SIZES)), out / "cells.jsonl"
    if run:
        if out.is_file():
            raise NotADirectoryError(f"{out} is a file: out must be a folder.")
        out.mkdir(parents=True, exist_ok=True)
        found = read_results(path)
        missing = [cell for cell in cells if only(cell) and cell not in found]
        sets = sorted({cell.dataset for cell in missing if not jpc.data.where(cell.dataset)})
        if sets:
            raise FileNotFoundError(
                f"{sets[0]} is not on this machine: jpc data fetch {sets[0]}. --smoke needs "
                "nothing but digits, which are in the library."
            )
        keep = lambda cell, done: append_lines(path, [_record(cell, done)])
        missing = _in_order(missing)
        told: Any = dict(cost=_cost, describe=_describe, minutes=minutes, shown=progress)
        with compiling(missing) as programs:
            work = lambda cell, advance: keep(cell, run_cell(cell, programs, advance))
            run_jobs(missing, work, **told)
    return write_report(name, suite, size, cells, read_results(path), out)


def read_results(path: Path) -> dict[Cell, dict[str, Any]]:
    """What was measured of each cell, and where. The last one counts."""
    return dict(read_lines(path, _parse))


def _record(cell: Cell, found: dict[str, Any]) -> dict[str, Any]:
    products = "tf32" if rounds_products() else "float32"
    return dict(cell=dataclasses.asdict(cell), found=found, where=where(products))


def _parse(line: Any) -> tuple[Cell, dict[str, Any]]:
    cell, found = Cell(**line["cell"]), line["found"]
    hash(cell)
    if not (found["accuracies"] and found["regimes"] and found["cost"] > 0):
        raise ValueError("This is no result.")
    return cell, found | line["where"]


def _in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Small networks first, and those beside each other that share their programs."""
    place = lambda cell: (_cost(dataclasses.replace(cell, rule="")), cell.place, cell.rule)
    return sorted(cells, key=place)


def _cost(cell: Cell) -> float:
    """About how many seconds a network takes."""
    passes = {"backprop": 1.0, "nudged": 1.3, "nudged-last": 1.3}.get(cell.rule, 3.0)
    size = 1.0 if not NETWORKS[cell.network].images else 1.0 if accelerated() else 1000.0
    return passes * size * cell.epochs * (cell.width / 128) ** 2


def _describe(cell: Cell) -> str:
    return f"{cell.place}: {cell.named}, seed {cell.seed}"
