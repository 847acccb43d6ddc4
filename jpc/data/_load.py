import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import ArrayLike, Float, Float32, Int32

from .._given import check_count, check_flags, show
from .._types import Given
from ._fetch import Root, fetch, find
from ._formats import Raw, read
from ._own import Name, Target, is_own
from ._recognise import load_own
from ._schema import Schema
from ._source import SOURCES, Source, source_of
from ._split import stratified

Labels: TypeAlias = Int32[np.ndarray, " _"] | Float32[np.ndarray, "_ targets"]
Examples: TypeAlias = tuple[Float32[np.ndarray, "_ ..."], Labels]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Inputs, and what to learn from them, as NumPy arrays.

    - `name`: one of [`jpc.data.NAMES`][], or a path.
    - `train`, `test`, and `validation` if there is any: the inputs, in float32, and the number of
      each one's class, in int32; or numbers to predict, normalised, in float32.
    - `schema`: what an example is, and how it was normalised: a [`jpc.data.Schema`][].
    - `note`: what `load` left out or changed in reading files of your own.

    **Example:**

    ```python
    import jpc.data

    digits = jpc.data.load("digits")
    images, labels = digits.test
    pictures = digits.restore(images[:8])  # In [0, 1], to look at.
    ```
    """

    name: str
    train: Examples
    validation: Examples | None
    test: Examples
    schema: Schema
    note: str = ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class; none if numbers are to be predicted."""
        return self.schema.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an input: channels, height, width of an image, or the number of features."""
        return self.schema.shape

    @property
    def mean(self) -> Float[np.ndarray, " channels"]:
        """What was subtracted from each channel or feature."""
        return self.schema.mean

    @property
    def std(self) -> Float[np.ndarray, " channels"]:
        """What each channel or feature was divided by after that."""
        return self.schema.std

    def restore(self, images: Given[ArrayLike]) -> Float[np.ndarray, "images ..."]:
        """Images to look at, in [0, 1], made of images of the data or of a network: normalised or
        not, flat or not, one or many. Values beyond black and white are clipped. Features of a
        table are in their own units again.
        """
        return self.schema.restore(images)

    def __repr__(self) -> str:
        return f"Dataset({self})"

    def __str__(self) -> str:
        """What it is, in a line."""
        parts = [("train", self.train), ("validate", self.validation), ("test", self.test)]
        counts = ", ".join(f"{len(part[1])} to {name}" for name, part in parts if part)
        shape = " x ".join(map(str, self.shape))
        inputs = f"images of {shape}" if self.schema.is_image else _count(shape, "feature")
        inputs += f" ({self.note})" if self.note else ""
        learned = f"{len(self.classes)} classes: {_listed(self.classes)}"
        if not self.classes:
            learned = f"regression of {_listed(self.schema.targets)}"
        learned = learned if self.schema.targets else "no targets"
        return f"{self.name}: {counts}; {inputs}; {learned}"


def _count(number: str, what: str) -> str:
    return f"{number} {what}" if number == "1" else f"{number} {what}s"


def _listed(names: tuple[str, ...], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def load(
    name: Given[Name],
    *,
    target: Given[Target] = None,
    leave_out: Given[Sequence[str]] = (),
    regression: Given[bool | None] = None,
    image_size: Given[int | None] = None,
    normalise: Given[bool] = True,
    flatten: Given[bool] = False,
    validation: Given[int | float] = 0,
    root: Root = None,
    download: Given[bool] = True,
    progress: Given[bool] = True,
) -> Dataset:
    """Loads a published data set, or one of your own. It looks for published data in `root`, in
    `JPC_DATA_DIR` and in the user's cache, and otherwise downloads it into that cache. It compares
    each file with its published checksum.

    **Arguments:**

    - `name`: one of [`jpc.data.NAMES`][], the path of a .csv, .tsv, .npz or .npy file or of a
      folder of images, or `module:function`.
    - `target`: the column of a table, the key of an .npz file or the .npy file that has the
      targets. By default the last column, `y` or `labels`, the file `y.npy` beside `x.npy`.
      Several columns, `("a", "b")`, are numbers to predict; `()` is none, for data without
      targets.
    - `leave_out`: columns of a table not to learn from, such as identities and dates.
    - `regression`: whether the targets of your own data are numbers to predict, rather than
      classes. By default words and few different whole numbers are classes.
    - `image_size`: the side to which images of a folder are scaled. By default they stay as they
      are, unless they differ in size or are large.
    - `normalise`: whether to shift and scale each channel of images, each feature of a table and
      each number to predict so that the training data has mean 0 and standard deviation 1, with
      those for validation. Otherwise pixels are in [0, 1].
    - `flatten`: whether images are vectors, rather than of shape (channels, height, width).
    - `validation`: how many training examples to set apart, or which fraction of them if it is
      below 1. They are chosen at random, always the same ones, in proportion to the classes.
    - `root`: a folder to look in first.
    - `download`: whether to download what is not found.
    - `progress`: whether to show a progress bar for a download, on a terminal.

    **Returns:**

    A [`jpc.data.Dataset`][].

    **Example:**

    ```python
    import jpc.data

    digits = jpc.data.load("digits", flatten=True, validation=0.1)
    images, labels = digits.train  # (1293, 64), (1293,)
    ```
    """
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"name must be that of a data set or of a file, got {show(name)}.")
    if not os.fspath(name):
        raise ValueError("name is empty: write that of a data set or of a file.")
    _check_own(target, leave_out, regression, image_size)
    check_flags(normalise=normalise, flatten=flatten, download=download, progress=progress)
    check_count("image_size", image_size, none=True)
    if name not in SOURCES and is_own(name):
        schema, parts, note = load_own(
            name,
            target=target,
            leave_out=leave_out,
            image_size=image_size,
            regression=regression,
            normalise=normalise,
        )
        return _assemble(schema, parts, validation, flatten, note)
    source_of(str(name))
    own = dict(target=target, leave_out=leave_out or None, regression=regression)
    own |= dict(image_size=image_size)
    if given := [key for key, value in own.items() if value is not None]:
        raise ValueError(f"{given[0]}= is for data of your own; leave it out for {name}.")
    return _load_published(str(name), normalise, flatten, validation, (root, download, progress))


def _check_own(target: Any, leave_out: Any, regression: Any, image_size: Any) -> None:
    for name, words in (("target", target), ("leave_out", leave_out)):
        listed = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
        if not (listed or (name == "target" and isinstance(words, str | None))):
            raise TypeError(f"{name} must be names, such as ('a', 'b'), got {show(words)}.")
    if regression is not None:
        check_flags(regression=regression)
    check_count("image_size", image_size, none=True)


def _assemble(
    schema: Schema, parts: dict[str, Examples], validation: Any, flatten: bool, note: str
) -> Dataset:
    if validation and "validation" in parts:
        raise ValueError(
            f"validation={validation}, but {schema.name} has validation data already."
        )
    train, held_out = _set_apart(parts["train"], validation)
    flat = lambda part: (part[0].reshape(len(part[0]), -1) if flatten else part[0], part[1])
    parts = parts | dict(train=train) | ({} if held_out is None else dict(validation=held_out))
    named: Any = {"validation": None} | {key: flat(part) for key, part in parts.items()}
    return Dataset(name=schema.name, schema=schema, note=note, **named)


def _load_published(
    name: str, normalise: bool, flatten: bool, validation: Any, place: tuple[Root, bool, bool]
) -> Dataset:
    source, (root, download, progress) = source_of(name), place
    folder = fetch(name, root=root, progress=progress) if download else find(name, root)
    train, test = source.parse(read(folder, source.contents), source.shape)
    train, held_out = _set_apart(train, validation)
    schema = published_schema(name, normalise)
    prepare = lambda raw: _prepare(raw, source.white, schema.mean, schema.std, flatten)
    return Dataset(
        name=name,
        train=prepare(train),
        validation=None if held_out is None else prepare(held_out),
        test=prepare(test),
        schema=schema,
    )


def published_schema(name: Given[str], normalise: Given[bool] = True) -> Schema:
    """The schema of a published data set, without loading it.

    **Example:**

    ```python
    import jpc.data

    schema = jpc.data.published_schema("mnist")
    shape, mean = schema.shape, schema.mean  # (1, 28, 28), 0.1307
    ```
    """
    source = source_of(name)
    check_flags(normalise=normalise)
    mean, std = _statistics(source, normalise)
    return Schema(
        name=name,
        shape=source.shape,
        classes=source.classes,
        high=float(source.white),
        mean=mean,
        std=std,
        target_mean=np.zeros(0),
        target_std=np.ones(0),
    )


def _set_apart(train: Any, validation: Any) -> tuple[Any, Any]:
    """Two parts of the training data, the second of them `None` if none is asked for."""
    images, labels = train
    number = isinstance(validation, int | float | np.number) and not isinstance(validation, bool)
    known = number and math.isfinite(validation)
    fraction = known and (validation < 1 or (isinstance(validation, float) and validation == 1))
    count = round(validation * len(labels)) if fraction else validation
    whole = known and 0 <= count < len(labels) and count == int(count)
    if not whole or (validation and not count):
        raise ValueError(
            f"validation={show(validation)} of {len(labels)} training examples: write a number of "
            "examples that leaves some to train with, or a fraction below 1 that is at least one "
            "of them."
        )
    if count == 0:
        return train, None
    groups = labels if labels.ndim == 1 else np.zeros(len(labels), int)
    chosen = stratified(groups, int(count))
    return (images[~chosen], labels[~chosen]), (images[chosen], labels[chosen])


def _statistics(source: Source, normalise: bool) -> tuple[np.ndarray, np.ndarray]:
    mean, std = np.asarray(source.mean, np.float32), np.asarray(source.std, np.float32)
    return (mean, std) if normalise else (np.zeros_like(mean), np.ones_like(std))


def _prepare(raw: Raw, white: int, mean: np.ndarray, std: np.ndarray, flatten: bool) -> Examples:
    images, labels = raw[0].astype(np.float32), raw[1].astype(np.int32)
    images /= white
    images -= _by_channel(mean)
    images /= _by_channel(std)
    return images.reshape(len(images), -1) if flatten else images, labels


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values[:, None, None]
