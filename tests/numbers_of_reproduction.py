"""As `numbers_of_pages.py`, for the paper's experiments."""

import json
from collections.abc import Iterator

from numbers_of_costs import first_norm
from numbers_of_pages import DEPTHS, Row, where

from jpc.experiments import _tables

SETS = ("mnist", "fashion-mnist", "cifar10")


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


def times_of_inference(published: list[Row], rows: list[Row]) -> Iterator[float]:
    pairs = zip(_by_network(published), _by_network(rows), strict=True)
    for place, (theirs, ours) in enumerate(pairs):
        yield DEPTHS[place % 3]
        for quoted, measured in zip(theirs, ours, strict=True):
            yield from (quoted[0]["ms"], _time(measured))


def steps_of_euler(rows: list[Row]) -> list[float]:
    return [euler[0]["t1"] / euler[0]["dt"] for euler, _ in _by_network(rows)]


def least_and_most_steps(rows: list[Row]) -> tuple[float, float]:
    return min(steps_of_euler(rows)), max(steps_of_euler(rows))


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


def slower_first_seed(cells: list[Row], rows: list[Row]) -> Iterator[float]:
    """In percent: a gradient of seed 0 against the others, in older and newer times, and a newer
    one against an older one, on CIFAR-10 last.
    """
    slower = lambda date: max(_slower(heun, date) for _, heun in _by_network(rows))
    yield from (100 * slower("2026-11-15"), 100 * slower("2026-11-16"))
    first, last = _by_cell(cells), _by_cell(cells[::-1])
    every = {
        place: 100 * (1 - _per_gradient(last[place]) / _per_gradient(rows))
        for place, rows in first.items()
    }
    saved = {place: less for place, less in every.items() if abs(less) > 1e-6}
    deep = saved.pop(("cifar10", 10))
    yield from (min(saved.values()), max(saved.values()), deep)


def _by_cell(cells: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Heun's times at a place, of cells that were run twice those that come first."""
    found: dict[str, Row] = {}
    for cell in cells:
        if cell["cell"]["measure"] == "time" and cell["cell"]["solver"] == "heun":
            found.setdefault(json.dumps(cell["cell"]), cell)
    places: dict[tuple[str, int], list[Row]] = {}
    for one in found.values():
        places.setdefault((one["cell"]["dataset"], one["cell"]["hidden"]), []).extend(one["rows"])
    return places


def _per_gradient(rows: list[Row]) -> float:
    return sum(row["ms"] for row in rows) / sum(row["evaluations"] for row in rows)


def _slower(rows: list[Row], date: str) -> float:
    each = [where(rows, seed=seed, date=date) for seed in range(3)]
    first, *others = [_per_gradient(mine) if mine else 0.0 for mine in each]
    return first / (sum(others) / 2) - 1 if first else 0.0


def once_diverged(rounding: list[Row], cells: list[Row]) -> Iterator[float]:
    """How small errors are; and when networks that were run again lost most of their accuracy."""
    yield from first_norm(rounding)
    first: dict[str, list[Row]] = {}
    for cell in cells:
        if cell["cell"]["measure"] == "theory" and cell["cell"]["t1"] == 100:
            first.setdefault(json.dumps(cell["cell"]), cell["rows"])
    ends = [_collapse(rows) for rows in first.values()]
    assert len(ends) == 6
    yield from (min(ends), max(ends))


def _collapse(rows: list[Row]) -> float:
    best = max(row["accuracy"] for row in rows)
    last = max(row["step"] for row in rows if row["accuracy"] > best / 2)
    return min(row["step"] for row in rows if row["step"] > last)


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


def times_that_hardly_differ(mnist: list[Row], fashion: list[Row]) -> Iterator[float]:
    """By how much T = 50 and less is better than 20 and 200, and what a first step changes."""
    few, more = (_best_of_each_t(where(fashion, solver="heun", hidden=h)) for h in (3, 5))
    yield max(few[t] for t in few if t <= 50) - few[20]
    yield more[50] - more[200]
    changes = []
    for rows in (mnist, fashion):
        long = [row for row in where(rows, solver="heun") if row["t1"] >= 50]
        for mine in _tables.group(long, "hidden", "t1").values():
            found = [_tables.best_accuracy(s)[0] for s in _tables.group(mine, "dt").values()]
            changes.append(max(found) - min(found))
    yield max(changes)


def lost_at_500(*files: list[Row]) -> Iterator[float]:
    """The T with the highest accuracy at each depth, and how much less there is at 500."""
    for rows in files:
        each = [_best_of_each_t(where(rows, solver="heun", hidden=hidden)) for hidden in DEPTHS]
        yield from (max(found, key=lambda t1: found[t1]) for found in each)
        yield from (max(found.values()) - found[500] for found in each)


def lost_on_mnist(rows: list[Row]) -> Iterator[float]:
    *selected, one, two, three = lost_at_500(rows)
    yield from (*selected, min(one, two, three), max(one, two, three))


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


def _at_ten(rows: list[Row], solver: int) -> list[float]:
    """Accuracies on MNIST and Fashion-MNIST, by Euler (0) or Heun (1)."""
    mine = [pair[solver] for pair in list(_by_network(rows))[2:6:3]]
    each = [(*_tables.best_accuracy(m), _tables.last_accuracy(m)[0]) for m in mine]
    return [value for found in each for value in found]


def _larger_steps(rows: list[Row]) -> Iterator[float]:
    for dt in (2, 5, 20):
        mine = where(rows, dt=dt)
        yield mine[0]["t1"] / dt + 1
        for row in mine:
            yield from (row["highest"], row["deviation"], row["last"])


def accuracies_at_ten(rows: list[Row], larger: list[Row]) -> Iterator[float]:
    """With the gradients of an inference, of Heun their mean for either data set."""
    euler, *_ = where(rows, dataset="mnist", hidden=10, solver="euler")
    yield from (euler["evaluations"], *_at_ten(rows, 0), *_larger_steps(larger))
    for dataset in SETS[:2]:
        heun = where(rows, dataset=dataset, hidden=10, solver="heun")
        yield sum(row["evaluations"] for row in heun) / len(heun)
    yield from _at_ten(rows, 1)


def small_and_large_steps(rows: list[Row], larger: list[Row]) -> list[float]:
    return [_at_ten(rows, 0)[0], where(larger, dataset="mnist", dt=5)[0]["highest"]]


GAPS = (
    (3, 0, 0.1), (3, 937, 0.1), (3, 937, 0.01), (3, 937, 0.001), (5, 937, 0.1), (5, 937, 0.001),
    (10, 0, 0.1), (10, 0, 0.001), (10, 937, 0.1), (10, 937, 0.001),
)  # fmt: skip
OF_GAPS = (
    "Euler, dt = 0.5", "Heun", "Heun of each example", "Euler, dt = 5", "Euler, dt = 20",
    "Euler of each example, dt = 0.3", "Equilibrium",
)  # fmt: skip


def ends_of_heun(rows: list[Row]) -> Iterator[float]:
    """Gradients to 0.1 of Euler and Heun, and where Heun ends; those of a step of 20 to 0.001,
    and its times, relative to `Equilibrium`.
    """
    to = lambda method, hidden, excess, step=0: [
        float(value)
        for value in _tables._cheapest(
            where(rows, hidden=hidden, step=step, method=method), excess
        )
    ]
    euler = {to("Euler, dt = 5", hidden, 0.1)[1] for hidden in DEPTHS}
    heun = [to(name, h, 0.1)[1] for name in OF_GAPS[1:3] for h in DEPTHS]
    yield from (*euler, min(heun), max(heun))
    yield from _excess_of_heun(rows)
    yield to("Euler, dt = 20", 10, 0.001)[1]
    times = [to("Euler, dt = 20", h, 0.1)[0] / to("Equilibrium", h, 0.1)[0] for h in DEPTHS]
    yield from (min(times), max(times))


def _excess_of_heun(rows: list[Row]) -> Iterator[float]:
    """After the longest time: before training, and then."""
    longest = [
        row
        for name, setting in (("Heun", "T = 2048"), ("Heun of each example", "T = 32"))
        for row in where(rows, method=name, setting=setting)
    ]
    before = [row for row in longest if row["step"] == 0]
    for deep in (False, True):
        found = [row["excess"] for row in before if (row["hidden"] == 10) is deep]
        yield from (min(found), max(found))
    yield max(row["excess"] for row in longest if row["step"] > 0)


def times_to_an_excess(rows: list[Row]) -> Iterator[float | None]:
    for method in OF_GAPS:
        for hidden, step, excess in GAPS:
            mine = where(rows, hidden=hidden, step=step, method=method)
            time, gradients = _tables._cheapest(mine, excess)
            yield from [None] if time == "-" else (float(time), float(gradients))
