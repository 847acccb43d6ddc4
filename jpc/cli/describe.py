"""What is in a data set, in words and as a picture."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jpc.data import NAMES, Dataset, NoTargetsError, is_own, load

from .._suggest import did_you_mean
from .config import ConfigError
from .own import refused, split_names
from .plot import as_file, plot_pictures
from .setting import Picture

_SHOWN = 12


def load_any(name: str, target: str | None, leave_out: str | None) -> Dataset:
    """A data set with its targets, if it has any."""
    if name not in NAMES and not is_own(name):
        listed, hint = ", ".join(NAMES), did_you_mean(name, NAMES)
        raise ConfigError(f"{name!r} is no data set: there are {listed}, or a path.{hint}")
    for flag, value in (("--target", target), ("--leave-out", leave_out)):
        if value is not None and name in NAMES:
            raise ConfigError(f"{flag} is for data of your own; {name} has its labels.")
    without = split_names(leave_out)
    with refused():
        try:
            return load(name, target=target, leave_out=without)
        except NoTargetsError as error:
            found, said = load(name, target=(), leave_out=without), str(error)
            return dataclasses.replace(found, note="; ".join(filter(None, (found.note, said))))


def describe_dataset(dataset: Dataset, *, whole: bool) -> dict[str, Any]:
    """Counts, shapes, ranges and classes; all features, or some of them if they are many."""
    schema = dataset.schema
    parts = dict(train=dataset.train, validation=dataset.validation, test=dataset.test)
    counts = {name: len(part[1]) for name, part in parts.items() if part}
    found: dict[str, Any] = dict(dataset=dataset.name, **counts)
    found["input"] = " x ".join(map(str, schema.shape)) + (
        " (an image)" if schema.is_image else " features"
    )
    if dataset.note:
        found["note"] = dataset.note
    found |= _inputs(dataset, whole)
    return found | (_classes(dataset, whole) if schema.classes else _numbers(dataset))


def _inputs(dataset: Dataset, whole: bool) -> dict[str, Any]:
    schema, values = dataset.schema, dataset.schema.restore(dataset.train[0])
    if schema.is_image:
        mean, std = (", ".join(f"{x:.3g}" for x in xs) for xs in (schema.mean, schema.std))
        return {
            "black, white": f"{schema.low:g}, {schema.high:g}",
            "pixels, from black 0 to white 1": f"mean {mean}, deviation {std}",
        }
    names = schema.inputs
    some = len(names) if whole else _SHOWN
    every = zip(names[:some], schema.are_words, values.T, strict=False)
    found = {f"feature {name}": (_share if word else _range)(x) for name, word, x in every}
    return found | ({"...": f"{len(names) - some} more features"} if len(names) > some else {})


def _share(values: np.ndarray) -> str:
    return f"{100 * values.mean():.3g} % of the examples"


def _range(values: np.ndarray) -> str:
    # They were normalised and restored in float32, which leaves a little of what was zero.
    values = np.where(np.abs(values) < 1e-6 * np.abs(values).max(), 0.0, values)
    low, high = values.min(), values.max()
    return f"{low:.4g} to {high:.4g}, mean {values.mean():.4g}, deviation {values.std():.4g}"


def _classes(dataset: Dataset, whole: bool) -> dict[str, Any]:
    counts = [np.bincount(part[1], minlength=len(dataset.classes)) for part in
              (dataset.train, dataset.test)]  # fmt: skip
    every = {name: f"{a} to train, {b} to test"
             for name, a, b in zip(dataset.classes, *counts, strict=True)}  # fmt: skip
    some = len(every) if whole else 3 * _SHOWN
    shown = {f"class {name}": every[name] for name in list(every)[:some]}
    return shown | ({"....": f"{len(every) - some} more classes"} if len(every) > some else {})


def _numbers(dataset: Dataset) -> dict[str, Any]:
    values = dataset.schema.decode(dataset.train[1])
    return {
        f"target {name}": _range(column)
        for name, column in zip(dataset.schema.targets, values.T, strict=True)
    }


def draw_data(dataset: Dataset) -> bytes:
    """Images of each class, or histograms of features."""
    return _draw_images(dataset) if dataset.schema.is_image else _draw_features(dataset)


def _draw_images(dataset: Dataset) -> bytes:
    images, labels = dataset.train
    rows = [np.flatnonzero(labels == i)[:10] for i in range(min(len(dataset.classes), 20))]
    rows = rows or [np.arange(min(len(images), 40))]
    padded = [np.r_[row, np.full(10 - len(row) % 10 if len(row) % 10 else 0, -1)] for row in rows]
    chosen = np.concatenate(padded).astype(int)
    blank = np.ones(dataset.shape, np.float32)
    shown = [blank if i < 0 else dataset.restore(images[i])[0] for i in chosen]
    return plot_pictures(list(map(Picture, shown, (_caption(dataset, int(i)) for i in chosen))))


def _caption(dataset: Dataset, i: int) -> str:
    if i < 0 or not dataset.schema.targets:
        return ""
    target = dataset.train[1][i]
    return (
        dataset.classes[target] if dataset.classes else f"{dataset.schema.decode(target)[0]:.4g}"
    )


def _draw_features(dataset: Dataset) -> bytes:
    """The distribution of each feature, class by class, and of numbers to predict."""
    schema, (inputs, labels) = dataset.schema, dataset.train
    values = schema.restore(inputs)[:, :_SHOWN]
    panels = [(name, column) for name, column in zip(schema.inputs, values.T, strict=False)]
    if not dataset.classes:
        numbers = schema.decode(labels).T[:4]
        panels += list(zip(schema.targets, numbers, strict=False))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3 * columns, 2.2 * rows + 0.4), layout="constrained")
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    groups = [labels == i for i in range(min(len(dataset.classes), 10))] or [slice(None)]
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (name, column) in zip(grid.flat, panels, strict=False):
        axes.hist([column[group] for group in groups], bins=20, stacked=True)
        axes.set_title(name, fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    if dataset.classes:
        place: Any = dict(loc="outside lower center", ncols=5, frameon=False)
        for text in figure.legend(dataset.classes[:10], **place).get_texts():
            text.set_parse_math(False)
    return as_file(figure)
