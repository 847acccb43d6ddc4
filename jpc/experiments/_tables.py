"""What came out, in tables: lists of rows of text, the first one the head."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from ._cell import Row

Table: TypeAlias = list[list[str]]
NETWORK = ("dataset", "hidden")


def group(rows: Iterable[Row], *names: str) -> dict[tuple, list[Row]]:
    """Rows by the values of some columns, in the order in which they first come."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def over_seeds(rows: Sequence[Row], column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, and the mean and the standard deviation of a column over the seeds at each that has
    all of them.
    """
    found = sorted(group((row for row in rows if row.get(column) is not None), "step").items())
    most = max((len(mine) for _, mine in found), default=0)
    values = {step: [r[column] for r in mine] for (step,), mine in found if len(mine) == most}
    each = lambda statistic: np.array([statistic(v) for v in values.values()])
    return np.array(list(values)), each(np.mean), each(np.std)


def best_accuracy(rows: Sequence[Row]) -> tuple[float, float]:
    """The highest mean test accuracy over the seeds at any moment of training, and its standard
    deviation.
    """
    _, mean, deviation = over_seeds(rows, "accuracy")
    return float(np.max(mean)), float(deviation[np.argmax(mean)])


def last_accuracy(rows: Sequence[Row]) -> tuple[float, float]:
    """The mean test accuracy over the seeds after training, and its standard deviation."""
    _, mean, deviation = over_seeds(rows, "accuracy")
    return float(mean[-1]), float(deviation[-1])


def spread(mean: float, deviation: float, seeds: int) -> str:
    return f"{mean:.2f} ± {deviation:.2f}" if seeds > 1 else f"{mean:.2f}"


def time_of(rows: Sequence[Row]) -> np.ndarray:
    """The mean time of inference of each seed."""
    return np.array([np.mean([r["ms"] for r in mine]) for mine in group(rows, "seed").values()])


def times(rows: Sequence[Row]) -> Table:
    columns = ["ms", "gradients"]
    head = ["data set", "H", "Euler T, dt", *columns, "Heun T, dt", *columns, "Euler / Heun, ms"]
    spread_of = lambda ms: spread(float(np.mean(ms)), float(np.std(ms)), len(ms))
    gradients = lambda found: f"{np.mean([row['evaluations'] for row in found]):.0f}"
    say = lambda found: [spread_of(time_of(found)), gradients(found)]
    return [head, *_by_solver(rows, say, _ratio_of_times)]


def _ratio_of_times(euler: list[Row], heun: list[Row]) -> str:
    """If they were taken on the same device."""
    if len(group(euler + heun, "device")) > 1:
        return ""
    return f"{np.mean(time_of(euler)) / np.mean(time_of(heun)):.2f}"


def accuracies(rows: Sequence[Row]) -> Table:
    """The highest of training, which is the paper's, and that at its end."""
    columns = ["highest, %", "last, %"]
    head = ["data set", "H", "Euler T, dt", *columns, "Heun T, dt", *columns, "Heun - Euler"]
    measures = (best_accuracy, last_accuracy)
    say = lambda found: [spread(*m(found), len(group(found, "seed"))) for m in measures]
    difference = lambda euler, heun: f"{best_accuracy(heun)[0] - best_accuracy(euler)[0]:+.2f}"
    return [head, *_by_solver(rows, say, difference)]


def _by_solver(
    rows: Sequence[Row],
    say: Callable[[list[Row]], list[str]],
    compare: Callable[[list[Row], list[Row]], str],
) -> Table:
    """A line for each network: two things to say of either solver, and one of both."""
    lines = []
    for (dataset, hidden), found in group(rows, *NETWORK).items():
        solvers = {name: mine for (name,), mine in group(found, "solver").items()}
        line = [dataset, str(hidden)]
        for solver in ("euler", "heun"):
            mine = solvers.get(solver, [])
            setting = [f"{row['t1']:g}, {row['dt']:g}" for row in mine[:1]]
            line += [*setting, *say(mine)] if mine else ["", "not run", ""]
        both = compare(solvers["euler"], solvers["heun"]) if len(solvers) == 2 else ""
        lines.append([*line, both])
    return lines


def accuracy_of_settings(rows: Sequence[Row]) -> dict[tuple, float]:
    """The highest mean test accuracy for each T and dt that was run with all of the seeds."""
    settings = group(rows, "t1", "dt")
    seeds = {key: len(group(found, "seed")) for key, found in settings.items()}
    complete = [key for key in settings if seeds[key] == max(seeds.values())]
    return {key: best_accuracy(settings[key])[0] for key in complete}


def grid(rows: Sequence[Row]) -> Table:
    """The highest of each network and solver is bold."""
    t1s = sorted({row["t1"] for row in rows})
    head = ["data set", "H", "solver", "dt", *(f"T = {t1:g}" for t1 in t1s)]
    lines = []
    for (*network, solver), found in group(rows, *NETWORK, "solver").items():
        accuracies = accuracy_of_settings(found)
        best = max(accuracies, key=lambda key: accuracies[key])
        for dt in sorted({row["dt"] for row in found}, reverse=True):
            keys = [(t1, dt) for t1 in t1s]
            texts = [f"{accuracies[key]:.2f}" if key in accuracies else "not run" for key in keys]
            bold = [f"**{t}**" if key == best else t for key, t in zip(keys, texts, strict=True)]
            lines.append([*map(str, network), solver, f"{dt:g}", *bold])
    return [head, *lines]


def theory(rows: Sequence[Row]) -> Table:
    """Energies relative to the closed form, before and after training: as reached, and as the
    flow would with an accurate solver.
    """
    head = [
        "data set", "T", "energy / theory, before", "after", "of the flow, before", "after",
        "highest mean accuracy, %", "last", "closed form against convergence, relative",
        "gradient norm there",
    ]  # fmt: skip
    lines = []
    for (dataset, t1), found in group(rows, "dataset", "t1").items():
        ratios = [end for name in ENERGIES for end in _ends(relative_to_theory(found, name))]
        accuracy = [best_accuracy(found)[0], last_accuracy(found)[0]]
        worst = [_worst(found, name) for name in ("error_of_theory", "gradient_norm")]
        line = [f"{t1:g}", *ratios, *(f"{a:.2f}" for a in accuracy), *worst]
        lines.append([dataset, *line])
    return [head, *lines]


ENERGIES = ("energy", "energy_of_flow")


def relative_to_theory(rows: Sequence[Row], name: str) -> list[Row]:
    """An energy in units of the closed form, where it was measured."""
    known = [row for row in rows if row.get(name) is not None]
    return [dict(step=row["step"], ratio=row[name] / row["theory"]) for row in known]


def _ends(rows: Sequence[Row]) -> list[str]:
    """The mean ratio before and after training."""
    _, ratios, _ = over_seeds(rows, "ratio")
    return [f"{ratios[0]:.3g}", f"{ratios[-1]:.3g}"] if len(ratios) else ["not run", "not run"]


def _worst(rows: Sequence[Row], name: str) -> str:
    values = [abs(row[name]) for row in rows if row.get(name) is not None]
    return f"{max(values):.1e}" if values else "not run"


def gap(rows: Sequence[Row], excesses: Sequence[float] = (1e-1, 1e-2, 1e-3)) -> Table:
    """The cheapest setting of each method that gets close enough for every seed."""
    each = [cell for excess in excesses for cell in (f"ms to {excess:g}", "gradients")]
    lines = []
    for (dataset, hidden, step), found in group(rows, *NETWORK, "step").items():
        for (method,), mine in group(found, "method").items():
            line = [dataset, str(hidden), str(step), method]
            lines.append(line + [c for e in excesses for c in _cheapest(mine, e)])
    return [["data set", "H", "step", "method", *each], *lines]


def _cheapest(rows: Sequence[Row], excess: float) -> list[str]:
    settings = group(rows, "setting").values()
    enough = [found for found in settings if all(r["excess"] <= excess for r in found)]
    if not enough:
        return ["-", "-"]
    median = lambda found, name: np.median([row[name] for row in found])
    best = min(enough, key=lambda found: median(found, "ms"))
    return [f"{median(best, 'ms'):.2f}", f"{median(best, 'evaluations'):.0f}"]
