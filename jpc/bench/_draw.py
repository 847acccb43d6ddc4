"""Pictures of tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ._report import by_rule, ends
from ._table import Cell

_GREY = "#888888"
_REGIME = {
    "mean_eigenvalue": "mean eigenvalue of S",
    "mean_sensitivity": "tr A / n",
    "successful": "certified examples",
}
_COLOURS = dict(plain="#c44e52", positive="#dd8452", negative="#8172b3", centred="#4c72b0")


def _axes(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.4 * columns + 0.6, 2.7 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure, axes


def _places(found: Mapping[Cell, dict]) -> list[str]:
    return list(dict.fromkeys(cell.place for cell in found))


def _legend(figure: Figure) -> None:
    every = [axis.get_legend_handles_labels() for axis in figure.axes]
    items = {label: handle for pair in every for handle, label in zip(*pair, strict=True)}
    options: Any = dict(frameon=False, fontsize=8, ncols=4, loc="outside lower center")
    figure.legend(items.values(), items.keys(), **options)


def strengths(found: Mapping[Cell, dict]) -> Figure:
    """For each place the accuracy, the sensitivity of the trained network and the angle to
    backpropagation against the strength.
    """
    places = _places(found)
    figure, axes = _axes(len(places), 3)
    last = lambda name: lambda run: run["regimes"][-1][name]
    panels = {
        "test accuracy, %": lambda run: run["accuracies"][-1],
        "tr A / n of the trained network": last("mean_sensitivity"),
        "angle to backpropagation": last("angle"),
    }
    for row, place in zip(axes, places, strict=True):
        groups = by_rule(place, found)
        for axis, (label, value) in zip(row, panels.items(), strict=True):
            _against_strength(axis, groups, value)
            axis.set(xscale="log", xlabel="strength, p tr(A) / n")
            axis.set_ylabel(label, fontsize=8)
        row[1].set_yscale("log")
        row[0].set_title(place, fontsize=9, loc="left")
    _legend(figure)
    return figure


def _against_strength(axis: Axes, groups: Mapping[tuple, Sequence[dict]], value: Any) -> None:
    for rule in dict.fromkeys(rule for rule, _ in groups):
        mine = {s: list(map(value, runs)) for (r, s), runs in groups.items() if r == rule}
        if None in mine:
            mean, deviation = float(np.mean(mine[None])), float(np.std(mine[None]))
            axis.axhline(mean, color=_GREY, linewidth=1, label=rule)
            axis.axhspan(mean - deviation, mean + deviation, color=_GREY, alpha=0.2, linewidth=0)
            continue
        x = sorted(mine)
        mean, deviation = (np.array([f(mine[s]) for s in x]) for f in (np.mean, np.std))
        short = rule.removesuffix("-exact")
        style: Any = dict(color=_COLOURS.get(short), marker="o", markersize=3, linewidth=1.2)
        axis.errorbar(x, mean, deviation, capsize=2, label=short, **style)


def training(found: Mapping[Cell, dict]) -> Figure:
    """For each place a line for each seed: the accuracy, the mean eigenvalue of S, the
    sensitivity of the network and the share of certified examples during training.
    """
    places = _places(found)
    figure, axes = _axes(len(places), 1 + len(_REGIME))
    named = list(dict.fromkeys(cell.named for cell in found))
    palette = mpl.colormaps["tab10" if len(named) < 11 else "tab20"].colors  # pyright: ignore
    colours = dict(zip(named, palette, strict=False)) | {"backprop": _GREY}
    for row, place in zip(axes, places, strict=True):
        groups = by_rule(place, found)
        for (rule, strength), runs in groups.items():
            label = rule if strength is None else f"{rule} {strength:g}"
            style: Any = dict(color=colours.get(label), linewidth=0.9, label=label)
            for run in runs:
                tested = run["accuracies"]
                row[0].plot(1 + np.arange(len(tested)), tested, **style)
                for axis, name in zip(row[1:], _REGIME, strict=True):
                    values = [look[name] for look in run["regimes"]]
                    epochs = [look["epoch"] for look in run["regimes"]]
                    if rule != "backprop" or name == "mean_sensitivity":
                        axis.plot(epochs, values, marker="o", markersize=2, **style)
        best = max(max(ends(runs)) for runs in groups.values())
        row[0].set_ylim(max(0, best - 25), min(100, best + 2))
        row[1].set_ylim(0.9, max(3.0, row[1].get_ylim()[1]))
        row[2].set_yscale("log")
        row[3].set_ylim(-0.03, 1.03)
        for axis, label in zip(row, ("test accuracy, %", *_REGIME.values()), strict=True):
            axis.set_ylabel(label, fontsize=8)
            axis.set_xlabel("epochs", fontsize=8)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[0].set_title(place, fontsize=9, loc="left")
    _legend(figure)
    return figure
