"""What somebody's file is: classes or numbers to predict, and which part is for what."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._given import check_flags
from .._types import Given
from ._own import DataError, Found, Name, NoTargetsError, Part, Target, is_figure, read_own, some
from ._schema import (
    Schema,
    as_images,
    as_names,
    check_finite,
    check_range,
    check_shape,
    fit_schema,
    plain_schema,
)
from ._split import stratified

_MOST_CLASSES = 20  # Of numbers. More different ones are numbers to predict.
_FEWEST = 5


def load_own(
    name: Name,
    *,
    target: Target,
    leave_out: Sequence[str],
    image_size: int | None,
    regression: bool | None,
    normalise: bool,
) -> tuple[Schema, dict[str, Any], str]:
    """Reads a file, finds out what it is, and splits it.

    **Returns:**

    The schema, the inputs and targets of each part, and what was done on the way.
    """
    where = os.fspath(name)
    found = read_own(name, target=target, leave_out=leave_out, image_size=image_size)
    none = target is not None and len(target) == 0
    parts = {key: _complete(where, key, part, none) for key, part in found.parts.items()}
    if "train" not in parts:
        raise DataError(f"{where} has {' and '.join(parts)} data, but none to train with.")
    classes, parts = _find_classes(where, found, parts, regression)
    names = _target_names(found, parts["train"][1])
    if not (none or classes):
        _check_varies(where, names, np.concatenate([targets for _, targets in parts.values()]))
    parts = parts if "test" in parts else parts | _split(where, parts["train"], bool(classes))
    schema = plain_schema(
        where,
        parts["train"][0],
        0 if classes else len(names),
        classes=classes,
        targets=names,
        features=found.features,
        words=found.words,
        places=() if none else found.places,
    )
    schema = fit_schema(schema, *parts["train"]) if normalise else schema
    for key, (inputs, _) in parts.items():
        check_shape(f"{where}, {key} data", schema, inputs.shape[1:])
    ready = {key: _prepare(where, schema, *part) for key, part in parts.items()}
    unseen = [name for name in classes if name not in {*parts["train"][1].tolist()}]
    note = f"nothing to train with of class {some(unseen)}" if unseen else ""
    return schema, ready, "; ".join(filter(None, (found.note, note)))


def read_like(name: Given[Name], schema: Given[Schema], *, targets: Given[bool] = True) -> Part:
    """Reads more data of the same kind: the test data of a file if it has any, otherwise all of
    it. The inputs are normalised in the same way as those before. The targets, which may be
    missing, are as they are in the file: `schema.encode` makes numbers of them. With
    `targets=False` they are not looked at, so that they may be empty or unknown.

    **Example:**

    ```python
    from pathlib import Path

    import jpc.data

    Path("trees.csv").write_text("height,tree\\n" + "2,oak\\n9,fir\\n3,oak\\n8,fir\\n" * 5)
    Path("new.csv").write_text("height\\n2.5\\n")
    trees = jpc.data.load("trees.csv")
    new = jpc.data.read_like("new.csv", trees.schema, targets=False)
    ```
    """
    if not (isinstance(name, str | os.PathLike) and isinstance(schema, Schema)):
        raise TypeError(f"Give a path and a schema, got {name!r:.80} and {schema!r:.80}.")
    where = os.fspath(name)
    check_flags(targets=targets)
    found = read_own(name, like=schema.like._replace(wanted=targets))
    part = found.parts.get("test", found.parts.get("train"))
    if part is None:
        raise DataError(f"{where} has {' and '.join(found.parts)} data only.")
    inputs = as_images(where, part.inputs) if part.inputs.ndim > 2 else part.inputs
    check_shape(where, schema, inputs.shape[1:])
    inputs = inputs.reshape(len(inputs), *schema.shape)
    scaled = inputs.astype(np.float32) / found.white if found.white else schema.scale(inputs)
    check_range(where, schema, scaled)
    known = part.targets if schema.targets and targets else None
    if known is not None and schema.classes:
        known = _named_like(where, found, schema, known)
    normalised = schema.normalise(scaled)
    check_finite(where, schema, normalised)
    return Part(normalised, known, part.names)


def _named_like(where: str, found: Found, schema: Schema, targets: np.ndarray) -> np.ndarray:
    """Targets of a new file with the names of the classes, if it has any, as the first one was
    read.
    """
    if found.classes:
        _check_names(where, found.classes, targets)
        return _class_names(found, targets)
    if _is_one_hot(targets):
        return np.array(schema.classes)[np.argmax(targets, axis=1)]
    return targets


def _complete(where: str, key: str, part: Part, none: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and targets: none of each example, where none are wanted."""
    inputs = as_images(where, part.inputs)
    if none:
        return inputs, np.zeros((len(inputs), 0))
    if part.targets is None:
        which, name = ("", "y") if key == "train" else (f" of its {key} data", f"y_{key}")
        raise NoTargetsError(
            f"{where} has no targets{which}. Call them {name}, name the target, or learn without "
            "(--task unsupervised, target=())."
        )
    return inputs, part.targets


def _find_classes(
    where: str, found: Found, parts: dict[str, Any], regression: bool | None
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of the classes, if these are what the targets are, and the parts with the names
    for targets.
    """
    every = [targets for _, targets in parts.values()]
    if len({targets.shape[1:] for targets in every}) > 1:
        raise DataError(f"{where}: the targets of its parts have different shapes.")
    if len({targets.dtype.kind == "U" for targets in every}) > 1:
        raise DataError(f"{where}: the targets of some parts are words, those of others numbers.")
    targets = np.concatenate(every)
    if regression is None:
        regression = not _are_classes(targets)
    if regression:
        if targets.dtype.kind == "U":
            raise DataError(
                f"{where}: {str(targets[0])!r} is not a number, so that this is not regression."
            )
        return (), parts
    if targets.ndim == 2 and not _is_one_hot(targets):
        raise DataError(
            f"{where} has {targets.shape[1]} numbers to predict, not classes: regression."
        )
    _check_names(where, found.classes, targets)
    named = {key: (inputs, _class_names(found, t)) for key, (inputs, t) in parts.items()}
    names = np.concatenate([t for _, t in named.values()])
    classes = tuple(map(str, dict.fromkeys(_in_order(found, targets, names))))
    _check_classes(where, classes, len(names))
    return classes, named


def _are_classes(targets: np.ndarray) -> bool:
    """Words are classes, and so are few different whole numbers."""
    if targets.dtype.kind == "U" or _is_one_hot(targets):
        return True
    if targets.ndim > 1 or np.any(targets != np.round(targets)):
        return False
    different = np.unique(targets)
    count, counted = len(different), targets.dtype.kind in "iu" and different[0] == 0
    if counted and different[-1] == count - 1 and 10 * count <= len(targets):
        return count <= 1000
    return count <= _MOST_CLASSES and 3 * count <= len(targets)


def _is_one_hot(targets: np.ndarray) -> bool:
    if targets.ndim != 2 or targets.shape[1] < 2 or targets.dtype.kind not in "buif":
        return False
    return bool(np.isin(targets, (0, 1)).all() and (targets.sum(axis=1) == 1).all())


def _check_names(where: str, names: Sequence[str], targets: np.ndarray) -> None:
    """That names of classes, if they are given, are those of the targets: words that are among
    them, or numbers from 0.
    """
    if not names:
        return
    if len({*names}) < len(names):
        raise DataError(f"{where}: two classes have the same name: {some(names)}.")
    known = names if targets.dtype.kind == "U" else range(len(names))
    found = range(targets.shape[1]) if targets.ndim == 2 else np.unique(targets).tolist()
    if odd := [value for value in found if value not in known]:
        what = "" if targets.dtype.kind == "U" else f", the numbers 0 to {known[-1]}"
        raise DataError(f"{where}: {odd[0]!r} is none of the classes {some(names)}{what}.")


def _class_names(found: Found, targets: np.ndarray) -> np.ndarray:
    numbers = np.argmax(targets, axis=1) if targets.ndim == 2 else targets
    if found.classes and numbers.dtype.kind != "U":
        return np.array(found.classes)[numbers.astype(int)]
    return np.array(as_names(numbers))


def _in_order(found: Found, targets: np.ndarray, names: np.ndarray) -> list[str]:
    """Each name once, in the order that was given, or of numbers, or of words."""
    if found.classes:
        return list(found.classes)
    different = set(names.tolist())
    if targets.dtype.kind == "U":
        return sorted(different)
    if targets.ndim == 2:
        return [str(i) for i in range(targets.shape[1])]
    return sorted(different, key=lambda name: (float(name), int(name) if name.isdigit() else 0))


def _check_classes(where: str, classes: tuple[str, ...], examples: int) -> None:
    if len(classes) < 2:
        raise DataError(f"{where} has one class only, {some(classes)}: there is nothing to learn.")
    if len(classes) > max(examples / 2, 2):
        what = f"{len(classes)} different targets in {examples} examples, such as {classes[0]!r}"
        hint = "write numbers as 1234.5, without signs, or " * is_figure(classes[0])
        raise DataError(f"{where} has {what}: too many for classes; {hint}name another target.")


def _check_varies(where: str, names: Sequence[str], targets: np.ndarray) -> None:
    if (targets == targets[:1]).all():
        listed, value = ", ".join(names[:10]), float(np.ravel(targets)[0])
        raise DataError(f"{where}: {listed} is {value:g} everywhere: there is nothing to learn.")


def _target_names(found: Found, targets: np.ndarray) -> tuple[str, ...]:
    count = 1 if targets.ndim == 1 else targets.shape[1]
    if count in (0, len(found.targets)):
        return found.targets[:count]
    return tuple(f"{found.targets[0]} {i}" for i in range(1, count + 1))


def _split(where: str, whole: tuple[np.ndarray, np.ndarray], classes: bool) -> dict[str, Any]:
    """A fifth to test with: always the same examples, in proportion to the classes."""
    inputs, targets = whole
    if len(inputs) < _FEWEST:
        raise DataError(f"{where} has {len(inputs)} examples: at least {_FEWEST} are needed.")
    groups = np.unique(targets, return_inverse=True)[1] if classes else np.zeros(len(inputs), int)
    test = stratified(groups, math.ceil(len(inputs) / 5))
    return dict(train=(inputs[~test], targets[~test]), test=(inputs[test], targets[test]))


def _prepare(where: str, schema: Schema, inputs: np.ndarray, targets: np.ndarray) -> Any:
    normalised = schema.normalise(schema.scale(inputs))
    check_finite(where, schema, normalised)
    return normalised, schema.encode(targets, where)
