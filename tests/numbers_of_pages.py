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

Row = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
NETWORKS = ("at initialisation", "trained at equilibrium", "trained the usual way")
DEPTHS = (3, 5, 10)


def rows_of(path: Path) -> list[Row]:
    """Of a csv, with numbers for what reads as one, or of lines of JSON."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
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


def errors_of_deep_networks(rows: list[Row]) -> Iterator[float]:
    precise = where(rows, matmul="highest")
    for epochs in (0, 1, 10):
        for precision in (1e-3, 1e-2, 0.1, 1.0):
            yield precision
            mine = where(precise, epochs=epochs, precision=precision)
            for network, loss in (("vgg5", "ce"), ("vgg5", "mse"), ("vgg7", "mse")):
                for count in (2, 3, "default"):
                    (row,) = where(mine, network=network, loss=loss, iterations=count)
                    yield row["error"]


def _pooling(rows: list[Row], **wanted: Any) -> list[Row]:
    """Of VGGs with max pooling, at full precision."""
    mine = where(rows, matmul="highest", **wanted)
    return [row for row in mine if row["network"] in ("vgg5", "vgg7")]


def _most(rows: list[Row], column: str = "error") -> float:
    return 100 * max(row[column] for row in rows)


def most_errors_of_deep_networks(rows: list[Row]) -> Iterator[float]:
    small = [row for row in _pooling(rows, iterations=3) if row["precision"] <= 0.01]
    yield from (_most(_pooling(rows, iterations="default")), _most(small))


def certified_deep_networks(rows: list[Row]) -> Iterator[float]:
    mine = _pooling(rows, iterations="default")
    small = [row for row in mine if row["precision"] <= 0.01]
    for some in (small, where(mine, precision=1.0)):
        shares = [100 * row["certified"] for row in some]
        yield from (min(shares), max(shares))
    yield _most(where(mine, precision=1.0))


def deep_networks_without_kinks(rows: list[Row]) -> Iterator[float]:
    """With average pooling, then without pooling: three chords, their exceptions, the default."""
    exact = where(rows, matmul="highest")
    for network, exceptions in (("vgg5-average", [("ce", 1.0)]), ("resnet", PRECISE)):
        mine = where(exact, network=network)
        odd = lambda r, es=exceptions: r["epochs"] == 10 and (r["loss"], r["precision"]) in es
        three = where(mine, iterations=3)
        default = where(mine, iterations="default")
        assert all(row["certified"] == 1 for row in default), "all examples"
        yield _most([row for row in three if not odd(row)])
        yield 100 * min(row["error"] for row in three if odd(row))
        yield _most(default)


PRECISE = [("mse", 0.1), ("mse", 1.0)]


def five_chords_of_averages(rows: list[Row]) -> Iterator[float]:
    mine = where(rows, network="vgg5-average", loss="mse", matmul="highest")
    five, three = (where(mine, iterations=count) for count in (5, 3))
    assert _most(three) < 1, "right"
    yield from (100 * min(row["error"] for row in five), _most(five))
    yield 100 * min(row["certified"] for row in five)


def tf32_of_deep_networks(rows: list[Row]) -> Iterator[float]:
    most = lambda **wanted: 100 * max(r["error"] for r in where(rows, matmul="default", **wanted))
    yield from (most(iterations="default"), most(iterations=3, precision=1e-3))


def references_of_vgg5(rows: list[Row]) -> Iterator[float]:
    """Which share of the examples has converged in float64."""
    mine = where(rows, network="vgg5", loss="ce", matmul="highest", iterations=2)
    for epochs in (0, 1, 10):
        yield from (100 * row["reference"] for row in where(mine, epochs=epochs))


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


def most_error_of_the_default(rows: list[Row]) -> list[float]:
    errors = list(errors_of_chords(rows))
    assert max(errors[1:4] + errors[13:16] + errors[25:28]) < 1e-2, "two chords"
    return [max(row["error"] for row in where(rows, method="Equilibrium, default"))]


def hops(rows: list[Row]) -> Iterator[float]:
    late = [row for row in where(rows, pool="max") if row["chords"] > 3]
    moved = [100 * row["states"] for row in late]
    yield from (min(moved), max(moved), 100 * max(row["energy"] for row in late))
    assert not any(row["states"] for row in where(rows, pool="average")[1:])


def training_of_vgg5(rows: list[Row]) -> list[float]:
    return [row["accuracy"] for row in where(rows, loss="ce")]


def squares_of_vgg5(rows: list[Row]) -> Iterator[float]:
    for precision in (1, 0.1, None):
        yield from (row["accuracy"] for row in where(rows, loss="mse", precision=precision))


def last_epoch_of_vgg5(rows: list[Row]) -> Iterator[float]:
    for loss, precisions in (("ce", (1, 0.1, 0.01, 0.001, None)), ("mse", (1, 0.1, None))):
        for precision in precisions:
            rule = "3 chords" if precision else "backpropagation"
            place = dict(loss=loss, rule=rule, precision=precision, epoch=3)
            yield where(rows, **place)[0]["accuracy"]


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


# Mutants.


def mutants(rows: list[Row]) -> Iterator[float]:
    for row in rows:
        judged, caught, since = row["judged"], row["caught"], row["caught_since"]
        yield from (judged, caught, 100 * caught / judged, row["by_time"])
        yield from [since] if since else []
        yield from [100 * since / judged, row["by_time_since"]] if since and since < judged else []


def last_mutants(rows: list[Row]) -> Iterator[float]:
    """The last sample, and the two before it."""
    for row in (rows[-1], *rows[-3:-1]):
        yield 100 * row["caught"] / row["judged"]
