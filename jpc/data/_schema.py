import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from .._types import Given
from ._own import DataError, Like

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False, kw_only=True)
class Schema:
    """What an example is, and how the numbers of a file become those that a network sees. It is
    all that is needed to read more examples of the same kind.

    - `name`: of the data set.
    - `shape`: of an input: channels, height, width of an image, or the number of features.
    - `classes`: the name of each class; none if numbers are to be predicted.
    - `targets`: the name of the column of classes, or of each number that is to be predicted.
    - `features`, `places`: the names of the columns of a table, and the places of its targets.
    - `words`: the words of each column of a table, none for a column of numbers. Each word has an
      input of its own, which is 1 where the word occurs. Empty if all columns are of numbers.
    - `low`, `high`: black and white in the files, if inputs are images.
    - `mean`, `std`: what is subtracted from each channel or feature, and what it is divided by
      then; `target_mean`, `target_std`: the same for numbers that are to be predicted.

    **Example:**

    ```python
    import jpc.data

    schema = jpc.data.load("digits").schema
    shape, classes = schema.shape, schema.classes  # (1, 8, 8), ("0", "1", ...)
    inputs = schema.inputs  # The names of what a network sees.
    ```
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    targets: tuple[str, ...] = ("target",)
    features: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    places: tuple[int, ...] = (-1,)
    low: float = 0.0
    high: float = 1.0
    mean: Float[np.ndarray, " channels"]
    std: Float[np.ndarray, " channels"]
    target_mean: Float[np.ndarray, " targets"]
    target_std: Float[np.ndarray, " targets"]

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def like(self) -> Like:
        """What a new file must have in common with the first one."""
        return Like(self.shape, self.features, self.words, self.places, self.targets)

    @property
    def inputs(self) -> list[str]:
        """The name of each feature that a network sees: `colour = red` for a word."""
        names = self.features or [f"x{i + 1}" for i in range(len(self.words) or len(self.mean))]
        words = self.words or [()] * len(names)
        both = zip(names, words, strict=True)
        return [n for name, each in both for n in ([f"{name} = {w}" for w in each] or [name])]

    @property
    def are_words(self) -> list[bool]:
        """Whether each feature that a network sees is a word, there or not."""
        return [bool(each) for each in self.words for _ in each or [""]] or [False] * len(
            self.mean
        )

    def scale(self, inputs: Num[np.ndarray, "_ ..."]) -> Float[np.ndarray, "_ ..."]:
        """Numbers of a file, with black at 0 and white at 1 in images."""
        if not self.is_image:
            return inputs.astype(np.float64)
        if inputs.dtype == np.uint8 and self.high == 1:  # Floats in [0, 1] are the same image.
            return inputs.astype(np.float32) / 255
        if inputs.dtype.kind == "f" and self.high > 1 and inputs.max() <= 1:
            return inputs.astype(np.float32)
        scaled = inputs.astype(np.float32)
        scaled -= np.float32(self.low)
        scaled /= np.float32(self.high - self.low)
        return scaled

    def normalise(self, scaled: Float[np.ndarray, "_ ..."]) -> Float[np.ndarray, "_ ..."]:
        """What a network sees."""
        scaled = scaled - self._broadcast(self.mean).astype(scaled.dtype)
        scaled /= self._broadcast(self.std).astype(scaled.dtype)
        with np.errstate(over="ignore"):  # Which is looked for.
            return scaled.astype(np.float32)

    def restore(self, inputs: Any) -> Float[np.ndarray, "_ ..."]:
        """The opposite: images in [0, 1], or features in their own units."""
        inputs = self._as_examples(inputs)
        found = inputs * self._broadcast(self.std) + self._broadcast(self.mean)
        if self.is_image:
            return np.clip(found, 0, 1).astype(np.float32)
        return np.where(self.are_words, np.round(found), found)

    def _as_examples(self, inputs: Any) -> np.ndarray:
        """One or many, flat or not."""
        try:
            array = np.asarray(inputs)
        except ValueError:  # Of rows of different lengths.
            array = np.asarray(None)
        if array.dtype.kind not in "buif":
            raise TypeError(f"images must be an array of numbers, got {type(inputs).__name__}.")
        size = math.prod(self.shape)
        whole = array.shape[-len(self.shape) :] == self.shape or array.shape[-1:] == (size,)
        if not (whole and array.size):
            raise ValueError(
                f"An example has the shape {self.shape}, or {(size,)} flat: got {array.shape}."
            )
        return np.reshape(array.astype(np.float32), (-1, *self.shape))

    def encode(self, targets: np.ndarray, where: str) -> np.ndarray:
        """Targets of a file as numbers of classes, or as normalised numbers. Errors say that
        `where` has them.
        """
        if self.classes:
            numbers = {name: i for i, name in enumerate(self.classes)}
            names = as_names(targets)
            if unknown := [name for name in names if name not in numbers]:
                known = ", ".join(self.classes[:10])
                raise DataError(f"{where}: {unknown[0]!r} is not a class; there are {known}.")
            return np.array([numbers[name] for name in names], np.int32)
        if targets.dtype.kind not in "buif":
            raise DataError(f"{where}: {targets[0]!r} is not a number, but numbers were learned.")
        values = np.reshape(targets, (len(targets), -1)).astype(np.float64)
        if values.shape[1] != len(self.targets):
            what = f"{values.shape[1]} targets, not {len(self.targets)}"
            raise DataError(f"{where} has {what}.")
        return ((values - self.target_mean) / self.target_std).astype(np.float32)

    def decode(self, outputs: Any) -> Float[np.ndarray, "_ targets"]:
        """Predicted numbers in the units of the file."""
        try:
            numbers = np.asarray(outputs, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"outputs must be an array of numbers, got {outputs!r:.80}.") from None
        return numbers * self.target_std + self.target_mean

    def _broadcast(self, values: np.ndarray) -> np.ndarray:
        return values[:, None, None] if self.is_image else values

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold, for [`jpc.data.read_schema`][]."""
        plain = lambda value: value.tolist() if isinstance(value, np.ndarray) else value
        return {key: plain(value) for key, value in asdict(self).items()}


def read_schema(given: Given[Mapping[str, Any]]) -> Schema:
    """The schema of a dictionary that `as_dict` made.

    **Example:**

    ```python
    import jpc.data

    schema = jpc.data.load("digits").schema
    again = jpc.data.read_schema(schema.as_dict())  # A dictionary goes into JSON.
    ```
    """
    names = [field.name for field in fields(Schema)]
    if not (isinstance(given, Mapping) and given.keys() <= {*names}):
        raise TypeError(f"given must be what as_dict of a schema makes, got {given!r:.80}.")
    arrays = ("mean", "std", "target_mean", "target_std")
    if missing := [key for key in ("name", "shape", "classes", *arrays) if key not in given]:
        raise ValueError(f"given has no {missing[0]!r}, which as_dict of a schema writes.")
    for key, value in given.items():
        _check_kind(key, value, arrays)
    read: Any = lambda key, value: np.array(value, float) if key in arrays else _as_tuple(value)
    return Schema(**{key: read(key, value) for key, value in given.items()})


def _check_kind(key: str, value: Any, arrays: Sequence[str]) -> None:
    """That it is what a schema has there: numbers, a number, a name, or a list."""
    number = lambda x: isinstance(x, int | float) and math.isfinite(x)
    positive = key.endswith("std")
    if key in arrays:
        fits = isinstance(value, list | tuple) and all(map(number, value))
        fits = fits and (not positive or all(x > 0 for x in value))
        expected = f"a list of {'positive' if positive else 'finite'} numbers"
    elif key in ("low", "high"):
        fits, expected = number(value), "a finite number"
    elif key == "name":
        fits, expected = isinstance(value, str), "a name"
    else:
        fits, expected = isinstance(value, list | tuple), "a list"
    if not fits:
        raise ValueError(f"{key} of a schema must be {expected}, got {value!r:.80}.")


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def as_names(targets: np.ndarray) -> list[str]:
    """Names of classes: whole numbers without a point, and all digits of others."""
    if targets.dtype.kind == "f":
        return [str(int(x)) if x.is_integer() else str(x) for x in targets.tolist()]
    return [str(value) for value in targets.tolist()]


def as_images(where: str, inputs: np.ndarray) -> np.ndarray:
    """Arrays with three axes are grey images; those with four have channels, which come first
    then.
    """
    if inputs.ndim == 2:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4 and inputs.shape[1] in _CHANNELS:
        return inputs
    if inputs.ndim == 4 and inputs.shape[3] in _CHANNELS:
        return np.moveaxis(inputs, -1, 1)
    raise DataError(
        f"{where}: inputs of the shape {inputs.shape}. Write (examples, features), (examples, "
        "height, width) or (examples, height, width, channels) with 1, 3 or 4 channels."
    )


def fit_schema(schema: Schema, inputs: np.ndarray, targets: np.ndarray) -> Schema:
    """A schema with the means and the standard deviations of training data. A feature or a
    channel that is constant is divided by 1.
    """
    scaled, names = schema.scale(inputs), [] if schema.is_image else schema.inputs
    precision = scaled.dtype if inputs.dtype.kind != "f" or schema.is_image else inputs.dtype
    found = _moments(scaled, (0, *range(2, inputs.ndim)), "", precision)
    _check_moments(schema.name, names, **found)
    if not schema.classes:
        values = targets.reshape(len(targets), -1).astype(np.float64)
        found |= (moments := _moments(values, (0,), "target_", values.dtype))
        _check_moments(schema.name, schema.targets, *moments.values())
    return replace(schema, **found)


def _check_moments(where: str, names: Sequence[str], mean: np.ndarray, std: np.ndarray) -> None:
    """Refuses numbers whose squares are no numbers any more."""
    large = np.flatnonzero(~(np.isfinite(mean) & np.isfinite(std)))
    if large.size:
        which = f", {names[large[0]]!r}" if names else ""
        raise DataError(f"{where}{which}: numbers too large to compute with. Divide them.")


def plain_schema(name: str, inputs: np.ndarray, numbers: int, **given: Any) -> Schema:
    """A schema that leaves features and so many numbers to predict as they are.

    **Arguments:**

    - `inputs`: as they are in the file, images with channels first.
    - `given`: the rest of a [`jpc.data.Schema`][].
    """
    low, high = _range(inputs) if inputs.ndim == 4 else (0.0, 1.0)
    mean, target_mean = np.zeros(inputs.shape[1]), np.zeros(numbers)
    moments = dict(mean=mean, std=mean + 1, target_mean=target_mean, target_std=target_mean + 1)
    return Schema(name=name, shape=inputs.shape[1:], low=low, high=high, **moments, **given)


def _moments(
    values: np.ndarray, axes: tuple[int, ...], prefix: str, precision: Any
) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        mean = values.mean(axis=axes, dtype=np.float64)
        std = values.std(axis=axes, dtype=np.float64)
    rounding = std <= np.finfo(precision).eps * np.abs(mean)
    flat = rounding | (values.min(axis=axes) == values.max(axis=axes))
    return {f"{prefix}mean": mean, f"{prefix}std": np.where(flat, 1.0, std)}


def _range(images: np.ndarray) -> tuple[float, float]:
    """Black and white."""
    low, high = float(images.min()), float(images.max())
    if images.dtype == np.uint8 and high > 127:
        return 0.0, 255.0
    if images.dtype.kind == "f" and low >= 0 and 0.5 < high <= 1:
        return 0.0, 1.0
    low = min(low, 0.0)
    return low, high if high > low else low + 1.0


def check_range(where: str, schema: Schema, scaled: np.ndarray) -> None:
    """Refuses images whose black and white are far from those of the training data."""
    if schema.is_image and (scaled.min() < -1 or scaled.max() > 2):
        span = schema.high - schema.low
        low, high = (schema.low + span * float(x) for x in (scaled.min(), scaled.max()))
        known = f"{schema.low:g} to {schema.high:g}"
        raise DataError(f"{where}: pixels from {low:g} to {high:g}, but {known} were learned.")


def check_finite(where: str, schema: Schema, normalised: np.ndarray) -> None:
    """Refuses numbers that no float32 can hold."""
    if not np.isfinite(normalised).all():
        example, place = np.argwhere(~np.isfinite(normalised))[0][:2].tolist()
        which = "" if schema.is_image else f", {schema.inputs[place]!r}"
        raise DataError(f"{where}{which}: example {example + 1} is too large to compute with.")


def check_shape(where: str, schema: Schema, shape: tuple[int, ...]) -> None:
    if math.prod(shape) != math.prod(schema.shape):
        known = f"those to train with have {schema.shape}"
        raise DataError(f"{where}: inputs of the shape {shape}, but {known}.")
