"""Pictures of what came out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from ._cell import Row
from ._tables import (
    ENERGIES,
    NETWORK,
    accuracy_of_settings,
    best_accuracy,
    group,
    last_accuracy,
    over_seeds,
    relative_to_theory,
)

COLOURS = {"euler": "#c44e52", "heun": "#4c72b0"}


def _axes(rows: int, columns: int) -> tuple[Canvas, Any]:
    canvas = Canvas(figsize=(3.6 * columns + 1.2, 2.9 * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def _panels(rows: Sequence[Row], draw: Callable[[Axes, list[Row]], None], label: str) -> Canvas:
    """One panel for each network: data sets below, depths beside each other."""
    networks = group(rows, *NETWORK)
    names = list(dict.fromkeys(name for name, _ in networks))
    depths = sorted({hidden for _, hidden in networks})
    canvas, axes = _axes(len(names), len(depths))
    for (name, hidden), found in networks.items():
        axis = axes[names.index(name), depths.index(hidden)]
        draw(axis, found)
        axis.set_title(f"{name}, H = {hidden}", fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel(label)
    _legend(canvas)
    return canvas


def _legend(canvas: Canvas) -> None:
    """Beside the panels: one for all of them."""
    every = [axis.get_legend_handles_labels() for axis in canvas.axes]
    found = {label: handle for pair in every for handle, label in zip(*pair, strict=True)}
    options: Any = dict(frameon=False, fontsize=8, loc="outside right upper")
    canvas.legend(found.values(), found.keys(), **options)


def _band(axis: Axes, rows: Sequence[Row], column: str, **style: Any) -> None:
    """The mean over the seeds during training, and one standard deviation around it, but not
    below what was measured: axes may be logarithmic.
    """
    steps, mean, deviation = over_seeds(rows, column)
    lowest = [min(r[column] for r in rows if r["step"] == step) for step in steps]
    axis.plot(steps, mean, linewidth=1.8, **style)
    low, high = np.maximum(mean - deviation, lowest), mean + deviation
    axis.fill_between(steps, low, high, alpha=0.25, linewidth=0, color=style["color"])


def times(rows: Sequence[Row]) -> Canvas:
    def draw(axis: Axes, found: list[Row]) -> None:
        for (solver,), mine in group(found, "solver").items():
            _band(axis, mine, "ms", color=COLOURS[solver], label=solver.capitalize())
        axis.set(yscale="log", xlabel="training step")

    return _panels(rows, draw, "time of inference (ms)")


def accuracies(rows: Sequence[Row]) -> Canvas:
    names = group(rows, "dataset")
    canvas, axes = _axes(1, len(names))
    for axis, ((name,), found) in zip(axes[0], names.items(), strict=True):
        depths = sorted({row["hidden"] for row in found})
        for (hidden, solver), mine in group(found, "hidden", "solver").items():
            mean, deviation = best_accuracy(mine)
            place = depths.index(hidden) + (0.2 if solver == "heun" else -0.2)
            style = dict(color=COLOURS[solver], label=solver.capitalize(), capsize=3)
            axis.bar(place, mean, 0.38, yerr=deviation, **style)
            last, _ = last_accuracy(mine)
            axis.plot(place, last, "k_", markersize=10, label="at the end of the epoch")
        axis.set_xticks(range(len(depths)), [f"H = {hidden}" for hidden in depths])
        axis.set(title=name, ylim=(0, 100))
    axes[0, 0].set_ylabel("highest mean test accuracy (%)")
    _legend(canvas)
    return canvas


def grid(rows: Sequence[Row]) -> Canvas:
    dts = sorted({row["dt"] for row in rows}, reverse=True)
    styles = dict(zip(dts, ("-", "--", ":"), strict=False))

    def draw(axis: Axes, found: list[Row]) -> None:
        for (solver,), mine in group(found, "solver").items():
            accuracies = accuracy_of_settings(mine)
            for dt in sorted({dt for _, dt in accuracies}, reverse=True):
                points = sorted((t1, a) for (t1, own), a in accuracies.items() if own == dt)
                label = f"{solver.capitalize()}, dt = {dt:g}"
                style: Any = dict(color=COLOURS[solver], linestyle=styles[dt], label=label)
                axis.plot(*np.transpose(points), marker="o", markersize=3, **style)
        t1s = sorted({row["t1"] for row in found})
        axis.set(xscale="log", xlabel="T")
        axis.set_xticks(t1s, [f"{t1:g}" for t1 in t1s])
        axis.minorticks_off()

    return _panels(rows, draw, "highest mean test accuracy (%)")


def theory(rows: Sequence[Row]) -> Canvas:
    canvas, (axes,) = _axes(1, 3)
    t1s = group(rows, "t1")
    for i, ((t1,), found) in enumerate(t1s.items()):
        style = dict(color=f"C{i}", label=f"T = {t1:g}")
        _band(axes[0], found, "energy", **style)
        steps, mean, _ = over_seeds(found, "theory")
        axes[0].plot(steps, mean, linestyle="--", linewidth=1, color=style["color"])
        for name, line in zip(ENERGIES, ("-", ":"), strict=True):
            if ratios := relative_to_theory(found, name):
                _band(axes[1], ratios, "ratio", linestyle=line, color=style["color"])
        _band(axes[2], found, "accuracy", **style)
    axes[0].plot([], [], "k--", linewidth=1, label="theory")
    if relative_to_theory(rows, "energy_of_flow"):
        axes[1].plot([], [], "k:", linewidth=1, label="of the flow itself")
    canvas.suptitle(", ".join(name for (name,) in group(rows, "dataset")), fontsize=10)
    axes[0].set(yscale="log", ylabel="energy at the end of inference")
    axes[1].set(yscale="log", ylabel="energy / theory")
    axes[1].axhline(1, color="k", linestyle="--", linewidth=1)
    axes[2].set(ylabel="test accuracy (%)")
    for axis in axes:
        axis.set_xlabel("training step")
    _legend(canvas)
    return canvas


def gap(rows: Sequence[Row]) -> Canvas:
    methods = sorted({row["method"] for row in rows})
    last = [found for (*_, step), found in group(rows, *NETWORK, "step").items() if step > 0]

    def draw(axis: Axes, found: list[Row]) -> None:
        for (method,), mine in group(found, "method").items():
            settings = group(mine, "setting").values()
            point = lambda same: [np.median([r[c] for r in same]) for c in ("ms", "excess")]
            ms, excess = np.transpose([point(same) for same in settings])
            style: Any = dict(color=f"C{methods.index(method)}", label=method)
            axis.plot(ms, np.clip(excess, 1e-6, 10), "o-", markersize=3, **style)
        axis.axhline(1, color="grey", linewidth=0.5, linestyle=":")  # Above: worse than nothing.
        axis.set(xscale="log", yscale="log", xlabel="ms for a batch")

    label = "excess energy, relative (up to 10)"
    return _panels([row for found in last for row in found], draw, label)
