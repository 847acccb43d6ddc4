"""One network of one experiment, and where its results are kept."""

import dataclasses
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Literal["accuracy", "time", "theory", "gap"]

# What is found of a cell, at the latest at the end of its training.
COLUMNS = {
    "accuracy": {"accuracy"},
    "time": {"accuracy", "ms", "evaluations"},
    "theory": {"accuracy", "energy", "energy_of_flow", "theory", "error_of_theory"},
    "gap": {"method", "setting", "ms", "evaluations", "excess", "gradient_error"},
}

PLACE = {"date", "device", "products", "jax", "jpc"}  # What is told of where a cell was run.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A network that is trained, how, and what is measured of it.

    - `measure`: at `points` moments of training the test accuracy and, besides, the wall-clock
        time of inference (`"time"`), or the energy that it reaches and that of the closed form
        (`"theory"`). `"gap"` compares methods of inference on the network that was trained.
    - `solver`, `t1`, `dt`: of the flow that it is trained with.
    """

    measure: Measure
    dataset: str
    hidden: int
    solver: Literal["euler", "heun", "equilibrium"]
    t1: float | int
    dt: float | int
    seed: int
    steps: int | None
    points: int
    width: int = 300
    act: str = "tanh"
    batch: int = 64
    learning_rate: float = 1e-3

    @property
    def setting(self) -> str:
        """`euler, T = 50, dt = 0.5`: how it is trained."""
        times = f", T = {self.t1:g}, dt = {self.dt:g}"
        return self.solver if self.solver == "equilibrium" else self.solver + times

    @property
    def evaluations(self) -> float:
        """About how many gradients its inference takes, to tell how long it will."""
        return self.t1 / self.dt if self.solver == "euler" else 20 + 0.3 * self.t1


class Store:
    """What was measured of each cell: lines of JSON, each written when its cell is done. The last
    one of a cell counts. What cannot be read, or is of another version, is left alone.
    """

    def __init__(self, path: Path):
        self._path = path
        self._found: dict[Cell, dict] = {}
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        bad = [number for number, line in enumerate(lines, 1) if not self._read(line)]
        if bad:
            listed = ", ".join(map(str, bad))
            warnings.warn(f"{path} has lines that are no results: {listed}.", stacklevel=2)

    def _read(self, line: str) -> bool:
        try:
            record = json.loads(line)
            cell = Cell(**record["cell"])
            rows, where = list(record["rows"]), dict(record["where"])
            whole = all("step" in row for row in rows) and where.keys() >= PLACE
        except (ValueError, TypeError, KeyError):
            return False
        if whole:
            self._found[cell] = dict(rows=rows, where=where)
        return whole

    def has(self, cell: Cell) -> bool:
        """Whether there is something of a cell."""
        return cell in self._found

    def is_done(self, cell: Cell, here: Mapping[str, str]) -> bool:
        """Whether a cell has all that is measured today, to the precision of this machine,
        `here`, and if it is about time, from one like it.
        """
        if not self.has(cell):
            return False
        rows, where = self._found[cell]["rows"], self._found[cell]["where"]
        names = ("products", "device") if cell.measure in ("time", "gap") else ("products",)
        complete = bool(rows) and COLUMNS[cell.measure] <= rows[-1].keys()
        return complete and all(where[name] == here[name] for name in names)

    def rows(self, cells: Iterable[Cell]) -> list[Row]:
        """One row for every number of these cells and where it is from, those that were not run
        left out.
        """
        found = [(cell, self._found[cell]) for cell in cells if cell in self._found]
        return [dataclasses.asdict(c) | row | f["where"] for c, f in found for row in f["rows"]]

    def add(
        self, cells: Sequence[Cell], rows: Sequence[list[Row]], where: Mapping[str, str]
    ) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        records = [
            dict(cell=dataclasses.asdict(cell), rows=mine, where=where)
            for cell, mine in zip(cells, rows, strict=True)
        ]
        with self._path.open("a+") as file:
            whole = file.tell() == 0 or self._path.read_bytes().endswith(b"\n")
            file.write("" if whole else "\n")  # After a line whose writing was interrupted.
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        self._found |= dict(zip(cells, records, strict=True))
