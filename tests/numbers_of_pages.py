"""How the numbers on the pages of the documentation follow from the files in docs/results.

A page names them in a comment above a table or a paragraph,

    <!-- from results/equilibrium-cpu.csv: relative_times -->

where `relative_times` is a function below, of the rows of the file. It returns the numbers of the
table in the order of reading, without the first column: `None` for a cell that says "-". Of a
paragraph, or of a table whose comment says "some from", they are some of the numbers, in order.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jpc.experiments import _tables

Row = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
NETWORKS = ("at initialisation", "trained at equilibrium", "trained the usual way")
SETS = ("mnist", "fashion-mnist", "cifar10")
DEPTHS = (3, 5, 10)


def rows_of(path: Path) -> list[Row]:
    """Of a csv, with numbers for what reads as one."""
    with path.open(newline="") as file:
        return [{name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text or None


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def digits(value: float, count: int) -> float:
    """A number as the text has it, with fewer digits than its zeros would say."""
    return float(f"{value:.{count - 1}e}")


# Inference, measured.


def errors_of_chords(rows: list[Row]) -> Iterator[float]:
    for network in NETWORKS:
        for chords in (2, 3, 5):
            name = "Equilibrium" if chords < 5 else "Equilibrium, default"
            mine = where(rows, network=network, method=name)
            yield chords
            for hidden in DEPTHS:
                found = where(mine, hidden=hidden)
                named = [r for r in found if r["setting"] in (f"{chords} chords", None)]
                yield named[0]["error"]


METHODS = (
    ("Equilibrium, default",),
    ("Heun", "Heun, default"),
    ("Euler of the paper (batch mean), dt=0.05",),
    ("Euler, dt=0.05",),
    ("Tsit5",),
    ("SGD 0.1",),
    ("Adam 0.01",),
    ("SGD 0.1 in the errors",),
    ("Nonlinear CG",),
)


def _cheapest(rows: list[Row], names: tuple[str, ...]) -> float | None:
    there = [r["ms"] for r in rows if r["method"] in names and r["excess"] <= 1e-3]
    return min(there, default=None)


def relative_times(rows: list[Row]) -> Iterator[float | None]:
    for names in METHODS:
        for hidden in (*DEPTHS, 30):
            for network in NETWORKS:
                mine = where(rows, hidden=hidden, network=network)
                base = _cheapest(mine, ("Equilibrium",))
                time = _cheapest(mine, names)
                yield time / base if time and base else None


def least_relative(*files: list[Row]) -> Iterator[float]:
    """Of all other methods, and of flows the least and the most."""
    count = 4 * len(NETWORKS)
    found = [list(relative_times(rows)) for rows in files]
    of = lambda place: [v for f in found for v in f[place * count : (place + 1) * count] if v]
    others = [value for place in range(1, len(METHODS)) for value in of(place)]
    flows = [value for place in (1, 2, 3, 4) for value in of(place)]
    yield from (min(others), min(flows), digits(max(flows), 2))


def best_errors(rows: list[Row]) -> tuple[float, float]:
    """The least and the most, over networks, that the best method has left."""
    places = {(row["hidden"], row["network"]) for row in rows}
    known = [row for row in rows if row["error"] is not None]
    best = [min(r["error"] for r in where(known, hidden=h, network=n)) for h, n in places]
    return min(best), max(best)


def far_from_equilibrium(h200: list[Row], cpu: list[Row]) -> Iterator[float]:
    place = dict(hidden=30, network="trained the usual way")
    gpu, other = where(h200, **place), where(cpu, **place)
    of = lambda rows, name, setting: where(rows, method=name, setting=setting)[0]
    default = ("Equilibrium, default", None)
    yield from (digits(of(rows, *default)["ratio"], 2) for rows in (gpu, other))
    near = [r for r in gpu if r["excess"] is not None and r["excess"] <= 1e-3]
    [sgd] = [row for row in near if row["method"] != default[0]]
    yield from (sgd["ratio"], 100 * sgd["error"])
    heun = of(gpu, "Heun, default", "T=2000")
    yield from (digits(heun["ratio"], 3), heun["excess"])
    yield 100 * of(other, "Equilibrium", "1 chords")["error"]


def errors_at_low_energy(*files: list[Row]) -> Iterator[float]:
    rows = [row for file in files for row in file]
    for method, setting in (("Equilibrium", "1 chords"), ("SGD 0.1", "20 steps")):
        mine = [r for r in where(rows, method=method, setting=setting) if r["excess"] <= 1e-3]
        found = [100 * row["error"] for row in mine]
        yield from (min(found), digits(max(found), 2))
