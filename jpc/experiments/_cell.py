"""One network of one experiment, and where its results are kept."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Literal["accuracy", "time", "theory", "gap"]


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
    def evaluations(self) -> float:
        """About how many gradients its inference takes, to tell how long it will."""
        return self.t1 / self.dt if self.solver == "euler" else 20 + 0.3 * self.t1


class Store:
    """What was measured of each cell: lines of JSON, each written when its cell is done."""

    def __init__(self, path: Path):
        self._path = path
        self._found: dict[Cell, dict] = {}
        if path.is_file():
            *whole, _ = path.read_text().split("\n")  # What follows the last line is not whole.
            for record in map(json.loads, whole):
                self._found[Cell(**record["cell"])] = record

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._found

    def rows(self, cells: Iterable[Cell]) -> list[Row]:
        """One row for every number of these cells, those that were not run left out."""
        done = [cell for cell in cells if cell in self]
        return [dataclasses.asdict(c) | row for c in done for row in self._found[c]["rows"]]

    def where(self, cells: Iterable[Cell]) -> list[Mapping[str, str]]:
        """On what they were run, each machine and day once."""
        found = [self._found[cell]["where"] for cell in cells if cell in self]
        return [dict(items) for items in dict.fromkeys(tuple(w.items()) for w in found)]

    def add(
        self, cells: Sequence[Cell], rows: Sequence[list[Row]], where: Mapping[str, str]
    ) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        records = [
            dict(cell=dataclasses.asdict(cell), rows=mine, where=where)
            for cell, mine in zip(cells, rows, strict=True)
        ]
        self._cut_unfinished_line()
        with self._path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        self._found |= dict(zip(cells, records, strict=True))

    def _cut_unfinished_line(self) -> None:
        """What is left of a line whose writing was interrupted."""
        if self._path.is_file():
            content = self._path.read_bytes()
            os.truncate(self._path, content.rfind(b"\n") + 1)
