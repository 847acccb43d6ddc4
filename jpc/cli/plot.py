"""Pictures of a run, with Matplotlib."""

import colorsys
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .folder import Record
from .setting import Picture
from .svg import Number, hue

_LABELS = {"test_acc": "test accuracy (%)", "test_loss": "test loss", "test_r2": "test R²"}


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _axes(columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.5 * columns, 4), layout="constrained")
    axes: Any = figure.subplots(1, columns, squeeze=False)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", alpha=0.3)
    return figure, list(axes)


def plot_accuracy(records: Sequence[Record], headline: str) -> bytes:
    """How good a network is after each epoch."""
    return plot_runs({"": records}, headline)


def plot_runs(runs: Mapping[str, Sequence[Record]], headline: str) -> bytes:
    """The same for several runs, by name."""
    figure, (axes,) = _axes(1)
    for name, records in runs.items():
        epochs, values = zip(*((r["epoch"], r[headline]) for r in records), strict=True)
        axes.plot(epochs, values, "o-", linewidth=2, markersize=4, label=name or None)
    axes.set(xlabel="epoch", ylabel=_LABELS[headline])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if any(runs):
        axes.legend(frameon=False)
    return as_png(figure)


def plot_energies(records: Sequence[Record], x_label: str) -> bytes:
    """The energies of the layers during inference after the first and after the last epoch,
    and at its end over training.
    """
    figure, (first, last, over) = _axes(3)
    for axes, record in ((first, records[0]), (last, records[-1])):
        course = record["diagnosis"]["course"]
        _plot_layers(axes, course["times"], course["energies"])
        axes.set(title=f"Inference, epoch {record['epoch']}", xlabel=x_label, ylabel="energy")
    epochs = [record["epoch"] for record in records]
    _plot_layers(over, epochs, [record["diagnosis"]["energies"] for record in records])
    over.xaxis.set_major_locator(MaxNLocator(integer=True))
    over.set(title="At the end of inference", xlabel="epoch", ylabel="energy")
    first.legend(frameon=False)
    return as_png(figure)


def _plot_layers(axes: Axes, xs: Sequence[Number], rows: Sequence[Sequence[Number]]) -> None:
    columns = np.asarray(rows, float).T
    for i, column in enumerate(columns):
        axes.plot(xs, column, linewidth=2, color=_rgb(i, len(columns)), label=f"layer {i + 1}")
    largest = np.nanmax(columns)
    axes.set(yscale="log", ylim=(max(np.nanmin(columns) / 2, 1e-6 * largest), 2 * largest))


def _rgb(i: int, number: int) -> tuple[float, float, float]:
    """The colour of the report."""
    return colorsys.hls_to_rgb(hue(i, number) / 360, 0.55, 0.75)


def plot_pictures(pictures: Sequence[Picture]) -> bytes:
    """Ten pictures in a row."""
    rows = -(-len(pictures) // 10)
    figure = Figure(figsize=(10, 1.3 * rows), layout="constrained")
    grid: Any = figure.subplots(rows, 10, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (image, caption, _) in zip(grid.flat, pictures, strict=False):
        axes.imshow(np.moveaxis(image, 0, -1), cmap="gray", vmin=0, vmax=1)
        axes.set_title(caption, fontsize=9, parse_math=False)
    return as_png(figure)
