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


def tf32_of_deep_networks(rows: list[Row]) -> Iterator[float]:
    most = lambda **wanted: 100 * max(r["error"] for r in where(rows, matmul="default", **wanted))
    yield from (most(iterations="default"), most(iterations=3, precision=1e-3))


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


def training_of_vgg5(rows: list[Row]) -> list[float]:
    return [row["accuracy"] for row in rows]


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


# The paper's experiments.


def _by_network(rows: list[Row]) -> Iterator[tuple[list[Row], list[Row]]]:
    """What Euler and Heun did in each network, data sets first."""
    for dataset in SETS:
        for hidden in DEPTHS:
            mine = where(rows, dataset=dataset, hidden=hidden)
            yield where(mine, solver="euler"), where(mine, solver="heun")


def _time(rows: list[Row]) -> float:
    return float(_tables.time_of(rows).mean())


def ratios_of_times(rows: list[Row]) -> list[float]:
    return [_time(euler) / _time(heun) for euler, heun in _by_network(rows)]


def least_and_most_faster(rows: list[Row]) -> tuple[float, float]:
    return min(ratios_of_times(rows)), max(ratios_of_times(rows))


def times_of_inference(rows: list[Row]) -> Iterator[float]:
    for euler, heun in _by_network(rows):
        yield from (_time(euler), _time(heun))


def steps_of_euler(rows: list[Row]) -> list[float]:
    return [euler[0]["t1"] / euler[0]["dt"] for euler, _ in _by_network(rows)]


def growth_of_times(rows: list[Row]) -> Iterator[float]:
    deep = list(_by_network(rows))[2::3]
    for _, heun in deep:
        _, times, _ = _tables.over_seeds(heun, "ms")
        yield from (times[0], times.max())
    yield _time(deep[-1][0])


def older_times(cells: list[Row], rows: list[Row]) -> Iterator[float]:
    """Of cells that were run twice the first."""
    timed = [cell for cell in cells if cell["cell"]["measure"] == "time"]
    first: dict[str, Row] = {}
    for cell in timed:
        first.setdefault(json.dumps(cell["cell"]), cell)
    older = [c["cell"] | row for c in first.values() for row in c["rows"]]
    new = list(_by_network(rows))
    found = list(_by_network(older))
    yield from (_time(new[place][0]) / _time(found[place][1]) for place in (0, 1, 3, 4))
    times = _tables.time_of(found[8][1])
    yield from (times.min(), times.max(), _time(new[8][0]))


def differences_of_accuracy(rows: list[Row]) -> Iterator[float]:
    best = lambda found: _tables.best_accuracy(found)[0]
    found = [best(heun) - best(euler) for euler, heun in _by_network(rows)]
    shallow = [found[place] for place in (0, 1, 3, 4, 6)]
    yield from (min(shallow), max(shallow), found[2], found[5], found[7], found[8])


def _best_of_each_t(rows: list[Row]) -> dict[float, float]:
    accuracies = _tables.accuracy_of_settings(rows)
    times = sorted({t1 for t1, _ in accuracies})
    return {t1: max(v for (own, _), v in accuracies.items() if own == t1) for t1 in times}


def best_of_each_t(*files: list[Row]) -> Iterator[float]:
    for rows in files:
        for (hidden,), mine in _tables.group(where(rows, solver="heun"), "hidden").items():
            yield from (hidden, *_best_of_each_t(mine).values())


def lost_at_500(*files: list[Row]) -> Iterator[float]:
    """The T with the highest accuracy at each depth, and how much less there is at 500."""
    for rows in files:
        each = [_best_of_each_t(where(rows, solver="heun", hidden=hidden)) for hidden in DEPTHS]
        yield from (max(found, key=lambda t1: found[t1]) for found in each)
        yield from (max(found.values()) - found[500] for found in each)


def ends_of_cifar(rows: list[Row]) -> Iterator[float]:
    found = _best_of_each_t(rows)
    for end in (max, min):
        t1 = end(found, key=lambda t1: found[t1])
        yield from (t1, found[t1])


def closed_form(*files: list[Row]) -> Iterator[float]:
    rows = [row for file in files for row in file if row["error_of_theory"] is not None]
    yield max(abs(row["error_of_theory"]) for row in rows)
    yield len(rows)
    yield max(row["gradient_norm"] for row in rows)


def _at(rows: list[Row], column: str, step: int) -> float:
    steps, means, _ = _tables.over_seeds(rows, column)
    return float(means[step if step < 1 else list(steps).index(step)])


def _ratio(rows: list[Row], name: str, step: int) -> float:
    return _at(_tables.relative_to_theory(rows, name), "ratio", step)


def theory_table(*files: list[Row]) -> Iterator[float]:
    for rows in files:
        for (t1,), mine in _tables.group(rows, "t1").items():
            yield t1
            yield from (_ratio(mine, "energy", 0), _ratio(mine, "energy", -1))
            yield _ratio(mine, "energy_of_flow", -1)
            yield from (_at(mine, "accuracy", 64), _at(mine, "accuracy", -1))


def early_ratios(mnist: list[Row], fashion: list[Row]) -> Iterator[float]:
    for rows, step in ((mnist, 32), (fashion, 32), (fashion, 64)):
        each = list(_tables.group(rows, "t1").values())
        yield from (_ratio(mine, "energy", step) for mine in each)
        yield from (_at(mine, "accuracy", step) for mine in each)


def accuracies_at_ten(rows: list[Row]) -> Iterator[float]:
    networks = list(_by_network(rows))[2:6:3]
    for solver in (0, 1):
        for pair in networks:
            yield from _tables.best_accuracy(pair[solver])
            yield _tables.last_accuracy(pair[solver])[0]


GAPS = (
    (3, 0, 0.1), (3, 937, 0.1), (3, 937, 0.01), (3, 937, 0.001), (5, 937, 0.1), (5, 937, 0.001),
    (10, 0, 0.1), (10, 0, 0.001), (10, 937, 0.1), (10, 937, 0.001),
)  # fmt: skip
OF_GAPS = (
    "Euler, dt = 0.5", "Heun", "Heun of each example", "Euler, dt = 5", "Euler, dt = 20",
    "Euler of each example, dt = 0.3", "Equilibrium",
)  # fmt: skip


def times_to_an_excess(rows: list[Row]) -> Iterator[float | None]:
    for method in OF_GAPS:
        for hidden, step, excess in GAPS:
            mine = where(rows, hidden=hidden, step=step, method=method)
            time, gradients = _tables._cheapest(mine, excess)
            yield from [None] if time == "-" else (float(time), float(gradients))
