import importlib
import inspect
import math
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .found import PARTS, DataError, Found, Name, Part, check_size, count_names, some, unchanged

_INPUTS = {"x", "xs", "input", "inputs", "image", "images", "data", "feature", "features", "arr_0"}
_TARGETS = {"y", "ys", "target", "targets", "label", "labels", "arr_1"}
_CLASSES = {"classes", "class_names", "label_names", "target_names"}


def read_npz(path: Path, target: Any) -> Found:
    try:
        with zipfile.ZipFile(path) as archive:
            keys, total = [name.removesuffix(".npy") for name in archive.namelist()], 0
            for key in keys:
                info = archive.getinfo(f"{key}.npy")
                with archive.open(info) as file:
                    total += _check_header(f"{path}, key {key!r}", file, info.file_size)
            check_size(str(path), total, 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, KeyError) as error:
        raise DataError(f"{path} is not an npz of NumPy, or damaged: {error}.") from None
    with np.load(path, allow_pickle=False) as arrays:
        return _arrange(path, {key: _load(path, key, arrays) for key in keys}, target, "key")


def _load(path: Path, key: str, arrays: Any) -> np.ndarray:
    try:
        return arrays[key]
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path}, key {key!r} is damaged: {error}.") from None


def _check_header(where: str, file: Any, size: int) -> int:
    """Refuses, before anything is read, what is a pickle, does not fit into memory, or is not in
    these bytes; returns how many it takes.
    """
    formats = np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    try:
        shape, _, dtype = readers[formats.read_magic(file)](file)
    except (ValueError, KeyError, EOFError) as error:
        raise DataError(f"{where} is not an array of NumPy, or damaged: {error}.") from None
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects. They are pickles, which can run any code and are not "
            "read: save an array of numbers, or of strings (array.astype(str))."
        )
    count = math.prod(shape)
    check_size(where, count, dtype.itemsize)
    if min(shape, default=0) < 0 or count * dtype.itemsize > size:
        raise DataError(f"{where} is damaged: it is shorter than its header says, {shape}.")
    return count * dtype.itemsize


def read_npy_files(path: Path, target: Any) -> Found:
    """An array of inputs, and one of targets beside it: `y.npy` for `x.npy`, `y_train.npy`,
    `x_test.npy` and `y_test.npy` for `x_train.npy`; or another one that is named.
    """
    if target:
        beside = next((p for p in (Path(target), path.parent / target) if p.is_file()), None)
        if beside is None:
            raise DataError(f"{target}: there is no such file, with the targets of {path}.")
        return _arrange(path, {"x": _read_npy(path), "y": _read_npy(beside)}, None, "file")
    role = _role(path.stem)
    if role is None or role[0] != "inputs":
        return _arrange(path, {"x": _read_npy(path)}, target, "file")
    beside = {file.stem: _role(file.stem) for file in sorted(path.parent.glob("*.npy"))}
    fits = lambda other: other is not None and other != role and bool(other[1]) == bool(role[1])
    keys = [path.stem, *(key for key, other in beside.items() if fits(other))]
    arrays = {key: _read_npy(path.with_name(f"{key}.npy")) for key in keys}
    return _arrange(path, arrays, target, "file")


def _read_npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        _check_header(str(path), file, path.stat().st_size)
    with unchanged(path, [path]):
        try:
            return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(f"{path} is damaged: {error}.") from None


def read_function(name: str, target: Any) -> Found:
    """What a function returns: a dictionary like an npz, a pair, or a pair of pairs."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise DataError(f"{name}: {error}.") from None
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error
    found = _call(name, made)
    if isinstance(found, Sequence) and len(found) == 2:
        names = ("x", "y")
        if all(isinstance(part, Sequence) and len(part) == 2 for part in found):
            names = ("x_train", "y_train", "x_test", "y_test")
            found = [side for part in found for side in part]
        found = dict(zip(names, found, strict=True))
    if not isinstance(found, Mapping):
        what = "(inputs, targets), ((inputs, targets), (inputs, targets)) to train and to test "
        raise DataError(f"{name} must return {what}with, or a dictionary with x and y.")
    arrays = {str(key): _as_array(name, key, value) for key, value in found.items()}
    return _arrange(name, arrays, target, "key")


def _as_array(name: str, key: Any, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise DataError(f"{name}, {str(key)!r} is no array: {error}") from None


def _call(name: str, made: Any) -> Any:
    """What a function of somebody's makes. What goes wrong in it has its name."""
    if not callable(made):
        raise DataError(f"{name} is of type {type(made).__name__}: name a function.")
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        raise DataError(f"{name} is called without arguments: {error}.") from None
    except ValueError:  # Not every callable has a signature.
        pass
    try:
        return made()
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> RuntimeError:
    """To leave the program, as scripts do, fails like all else."""
    return RuntimeError(f"{name} failed: {type(error).__name__}: {error}")


def _role(key: str) -> tuple[str, str] | None:
    """What a key is for: `train_images` are `("inputs", "train")`."""
    if key.lower() in _CLASSES:
        return "classes", ""
    words = [key.lower()] if key.startswith("arr_") else re.split(r"[\W_]+", key.lower())
    part = "".join(PARTS[word] for word in words if word in PARTS)
    rest = [word for word in words if word not in PARTS]
    for role, known in (("inputs", _INPUTS), ("targets", _TARGETS)):
        if len(rest) == 1 and rest[0] in known and part in ("", *PARTS.values()):
            return role, part
    return None


def _arrange(path: Name, arrays: dict[str, np.ndarray], target: Any, what: str) -> Found:
    """Parts of arrays, by their keys."""
    roles = {key: _role(key) for key in arrays}
    if target == ():
        roles = {k: r for k, r in roles.items() if r is None or r[0] != "targets"}
    elif target is not None:
        if target not in arrays:
            raise DataError(f"{path} has no {what} {target!r}: there are {some(arrays)}.")
        roles = {k: r for k, r in roles.items() if r != ("targets", "")}
        roles[target] = ("targets", "")
    keys: dict[tuple[str, str], str] = {}
    for key, role in roles.items():
        if role is not None and role in keys:
            both = f"{keys[role]!r} and {key!r}"
            raise DataError(f"{path}: {both} may both be the {role[0]}. Rename one of them.")
        if role is not None:
            keys[role] = key
    for (role, part), key in keys.items():
        if role == "targets" and part and target is None and ("inputs", part) not in keys:
            raise DataError(f"{path} has {what} {key!r}, but no inputs x_{part} for it.")
    parts = {role[1]: _pair(path, arrays, keys, role[1]) for role in keys if role[0] == "inputs"}
    if "" in parts and len(parts) == 1:
        parts = {"train": parts[""]}
    if not arrays:
        raise DataError(f"{path} has no arrays in it: save x and y.")
    if not parts or "" in parts:
        names = "x and y, or x_train, y_train, x_test and y_test"
        raise DataError(f"{path}: the {what}s are {some(arrays)}. Call them {names}.")
    classes = keys.get(("classes", ""))
    named = () if classes is None else tuple(map(str, np.ravel(arrays[classes])))
    used = [keys[role] for role in keys if role[0] == "targets"]
    unused = [key for key in arrays if key not in keys.values()]
    note = f"without its {what}{'s' * (len(unused) > 1)} {some(unused)}" if unused else ""
    targets = (used[0] if len(used) == 1 else "target",)
    return Found(parts, targets=targets, classes=named, note=note)


def _pair(path: Name, arrays: dict[str, np.ndarray], keys: dict, part: str) -> Part:
    key, other = keys["inputs", part], keys.get(("targets", part))
    inputs = arrays[key] if arrays[key].ndim != 1 else arrays[key][:, None]
    _check_numbers(f"{path}, {key!r}", inputs)
    if other is None:
        return Part(inputs, None, count_names(inputs))
    targets = arrays[other]
    if targets.ndim == 0 or len(targets) != len(inputs):
        shapes = f"{key!r} has the shape {arrays[key].shape}, {other!r} {targets.shape}"
        raise DataError(f"{path}: {shapes}. They need a row for each example.")
    if targets.dtype.kind not in "USb":
        _check_numbers(f"{path}, {other!r}", targets)
    targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    flags = targets.dtype.kind == "b" and targets.ndim == 1 and ("classes", "") not in keys
    targets = targets.astype(str) if flags or targets.dtype.kind == "S" else targets
    if targets.ndim > (1 if targets.dtype.kind == "U" else 2):
        raise DataError(
            f"{path}, {other!r} has the shape {targets.shape}: a row for each example."
        )
    return Part(inputs, targets, count_names(inputs))


def _check_numbers(where: str, values: np.ndarray) -> None:
    if values.dtype.kind not in "buif":
        raise DataError(f"{where} is of type {values.dtype}: numbers are needed.")
    if values.ndim == 0:
        raise DataError(f"{where} is one number: it needs a row for each example.")
    if values.size == 0:
        raise DataError(f"{where} has the shape {values.shape}: there is nothing in it.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(values))[0].tolist()
        raise DataError(f"{where} is not finite at {place}. Fill it in, or leave the row out.")
