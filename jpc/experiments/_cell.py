"""One network of one experiment, and where its results are kept."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .._lines import append_lines, read_lines

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Literal["accuracy", "time", "theory", "gap"]

# What is found of a cell, at the latest at the end of its training.
COLUMNS = {
    "accuracy": {"accuracy"},
    "time": {"accuracy", "ms", "evaluations"},
    "theory": {"accuracy", "energy", "energy_of_flow", "theory", "error_of_theory"},
    "gap": {"method", "setting", "ms", "evaluations", "excess", "gradient_error"},
}

TEXTS = {"method", "setting"}  # All others are numbers.

WHERE = {"date", "device", "products", "jax", "jpc"}  # What is told of where a cell was run.


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
    def times(self) -> str:
        """`T = 50, dt = 0.5`: how long inference is."""
        flow = f"T = {self.t1:g}, dt = {self.dt:g}"
        return "3 chords" if self.solver == "equilibrium" else flow

    @property
    def setting(self) -> str:
        """`euler, T = 50, dt = 0.5`: how it is trained."""
        return f"{self.solver}, {self.times}"

    @property
    def evaluations(self) -> float:
        """About how many gradients its inference takes, to tell how long it will."""
        return self.t1 / self.dt if self.solver == "euler" else 20 + 0.3 * self.t1


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured of a cell, and where."""

    cell: Cell
    rows: list[Row]
    where: dict[str, str]


Place: TypeAlias = tuple[str, ...]


class Store:
    """What was measured of each cell: lines of JSON, each written when its cell is done. The last
    one of a cell and place counts. What cannot be read, or is of another version, is left alone.
    """

    def __init__(self, path: Path):
        self._path = path
        self._found: dict[tuple[Cell, Place], Record] = {}
        self._keep(read_lines(path, _read))

    def _keep(self, records: Iterable[Record]) -> None:
        for record in records:
            key = record.cell, _place(record.cell, record.where)
            self._found.pop(key, None)
            self._found[key] = record  # At the end.

    def is_done(self, cell: Cell, here: Mapping[str, str]) -> bool:
        """Whether a cell has all that is measured today, at a place like `here`."""
        record = self._found.get((cell, _place(cell, here)))
        return record is not None and COLUMNS[cell.measure] <= record.rows[-1].keys()

    def rows(self, cells: Iterable[Cell]) -> dict[Cell, list[Row]]:
        """What was measured of these cells, those that were not run left out. All seeds of a
        setting are of one place: of that with the most of them, or the last of several.
        """
        settings: dict[Cell, list[Cell]] = {}
        for cell in cells:
            settings.setdefault(dataclasses.replace(cell, seed=0), []).append(cell)
        rows = {}
        for same in settings.values():
            places = [place for cell, place in self._found if cell in same]
            most = max(reversed(places), key=places.count, default=())
            for cell in same:
                if record := self._found.get((cell, most)):
                    own = dataclasses.asdict(cell)
                    rows[cell] = [own | row | record.where for row in record.rows]
        return rows

    def add(
        self, cells: Sequence[Cell], rows: Sequence[list[Row]], where: Mapping[str, str]
    ) -> None:
        records = [Record(c, r, dict(where)) for c, r in zip(cells, rows, strict=True)]
        append_lines(self._path, map(dataclasses.asdict, records))
        self._keep(records)


def _place(cell: Cell, where: Mapping[str, str]) -> Place:
    """What numbers must have in common to be put together: the precision of their products and,
    if they are about time, the device.
    """
    names = ("products", "device") if cell.measure in ("time", "gap") else ("products",)
    return tuple(where[name] for name in names)


def _read(found: Any) -> Record:
    """The record of a line, or an error if it is none."""
    record = Record(Cell(**found["cell"]), found["rows"], found["where"])
    hash(record.cell)  # Or its values are none.
    values = [item for row in record.rows for item in row.items()]
    whole = (
        len(record.rows) > 0
        and all(isinstance(row["step"], int) for row in record.rows)
        and all(isinstance(v, str if k in TEXTS else int | float) for k, v in values)
        and record.where.keys() >= WHERE
    )
    if not whole:
        raise ValueError("This is no record of a cell.")
    return record
