"""Pictures of a run, with Matplotlib."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .folder import Record
from .metrics import most_of
from .setting import Picture
from .svg import Line, Number, colour

_LABELS = {"test_acc": "test accuracy (%)", "test_loss": "test loss", "test_r2": "test R²"}


def as_file(figure: Figure, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150)
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
    epochs, values = [r["epoch"] for r in records], [r.get(headline) for r in records]
    return plot_lines([Line("", epochs, values)], headline)


def plot_lines(lines: Sequence[Line], headline: str, kind: str = "png") -> bytes:
    """Lines over epochs, with bands around those that have them. A `None` is a gap."""
    figure, (axes,) = _axes(1)
    for name, xs, ys, low, high in lines:
        (drawn,) = axes.plot(xs, np.asarray(ys, float), "o-", lw=2, markersize=4, label=name)
        if low:
            edges = np.asarray(low, float), np.asarray(high, float)
            axes.fill_between(xs, *edges, color=drawn.get_color(), alpha=0.2, lw=0)
    axes.set(xlabel="epoch", ylabel=_LABELS.get(headline, headline))
    axes.set_ylim(top=min(axes.get_ylim()[1], most_of(headline)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if any(line.name for line in lines):
        for text in axes.legend(frameon=False).get_texts():
            text.set_parse_math(False)  # A $ in a name is one.
    return as_file(figure, kind)


def plot_energies(records: Sequence[Record], x_label: str) -> bytes:
    """The energies of the layers during inference after the first and after the last epoch,
    and at its end over training.
    """
    figure, (first, last, over) = _axes(3)
    for axes, record in ((first, records[0]), (last, records[-1])):
        course = record["diagnosis"]["course"]
        _plot_layers(axes, course["times"], course["energies"])
        axes.set(title=f"Inference, epoch {record['epoch']}", xlabel=x_label, ylabel="energy")
        if x_label == "time":
            axes.set_xscale("log", nonpositive="mask")
    epochs = [record["epoch"] for record in records]
    _plot_layers(over, epochs, [record["diagnosis"]["energies"] for record in records])
    over.xaxis.set_major_locator(MaxNLocator(integer=True))
    over.set(title="At the end of inference", xlabel="epoch", ylabel="energy")
    first.legend(frameon=False)
    return as_file(figure)


def _plot_layers(axes: Axes, xs: Sequence[Number], rows: Sequence[Sequence[Number]]) -> None:
    columns = np.asarray(rows, float).T
    for i, column in enumerate(columns):
        axes.plot(xs, column, linewidth=2, color=colour(i, len(columns)), label=f"layer {i + 1}")
    shown = columns[columns > 1e-9 * np.nanmax(columns, initial=0.0)]
    if shown.size:
        axes.set(yscale="log", ylim=(shown.min() / 2, 2 * shown.max()))


def plot_pictures(pictures: Sequence[Picture]) -> bytes:
    """Ten pictures in a row."""
    rows = -(-len(pictures) // 10)
    figure = Figure(figsize=(10, 1.3 * rows), layout="constrained")
    grid: Any = figure.subplots(rows, 10, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, picture in zip(grid.flat, pictures, strict=False):
        axes.imshow(np.moveaxis(picture.image, 0, -1), cmap="gray", vmin=0, vmax=1)
        axes.set_title(picture.caption, fontsize=9, parse_math=False)
    return as_file(figure)
