"""Data of one's own: what it decides, and what a run keeps of it."""

import contextlib
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jpc.data import (
    NAMES,
    DataError,
    Dataset,
    Schema,
    load,
    published_schema,
    read_like,
    read_schema,
)

from .._files import write_whole
from .check import NOTHING_TO_STOP_BY, decide, resolve
from .config import Config, ConfigError, Data
from .folder import RunFolder

_STEPS, _BATCHES = 600, 16
_REGRESSION = dict(regression=True, discriminative=False, generative=False, hybrid=False)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """What is wrong with a file is a wrong use. What somebody's function prints is no result."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except DataError as error:
        raise ConfigError(str(error)) from None
    except ValueError as error:
        if "validation" not in str(error):
            raise
        raise ConfigError(f"--validation: {error}") from None


def load_own(data: Data, *, flatten: bool) -> Dataset:
    """The data of a path, for a task if one was given. Without supervision everything is learned
    but what is named.
    """
    unsupervised, names = data.task == "unsupervised", (data.leave_out, data.target)
    left_out = names if unsupervised else names[:1]
    with refused():
        return load(
            data.dataset,
            target=() if unsupervised else data.target,
            leave_out=[name for each in left_out for name in split_names(each)],
            image_size=data.image_size,
            validation=data.validation,
            regression=_REGRESSION.get(data.task),
            flatten=flatten,
        )


def split_names(given: str | None) -> list[str]:
    """`a,b` as a list."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def settle(config: Config, dataset: Dataset) -> Config:
    """A configuration with what somebody's data decides: whether it is regression, and batches,
    epochs and a rate with which a small data set is learned in enough steps, but not by heart.
    """
    if not config.data.is_own:
        return config
    _check(config, dataset)
    examples = len(dataset.train[1])
    few = 2 ** max(2, round(math.log2(examples / _BATCHES)))
    size = config.training.batch_size or min(64, few, examples)
    epochs = min(50, max(20, math.ceil(_STEPS / (examples // size))))
    task = "discriminative" if dataset.classes else "regression"
    config = decide(config, task, epochs=epochs, batch_size=size, learning_rate=1e-3)
    data = dataclasses.replace(config.data, dataset=_absolute(config.data.dataset))
    return resolve(dataclasses.replace(config, data=data))


def _check(config: Config, dataset: Dataset) -> None:
    """Refuses what does not go with this data."""
    size, examples = config.training.batch_size, len(dataset.train[1])
    kind = config.network.kind
    if size > examples:
        raise ConfigError(
            f"--batch-size {size}, but {dataset.name} has {examples} examples to train with."
        )
    if config.training.patience is not None and dataset.validation is None:
        raise ConfigError(NOTHING_TO_STOP_BY)
    if dataset.schema.is_image:
        return
    if config.data.image_size is not None:
        raise ConfigError(
            f"--image-size is for images, and {dataset.name} has none: leave it out."
        )
    if kind != "mlp":
        raise ConfigError(f"--network {kind} is for images, but {dataset.name} has none: mlp.")
    if config.data.augment != "none":
        raise ConfigError(f"--augment is for images, and {dataset.name} has none: leave it out.")


def _absolute(dataset: str) -> str:
    path = Path(dataset).expanduser()
    return str(path.absolute()) if path.exists() else dataset


def keep_data(folder: RunFolder, config: Config, dataset: Dataset) -> None:
    """Writes down what somebody's data is, and how it is normalised."""
    if config.data.is_own:
        counts = [len(part[1]) for part in (dataset.train, dataset.test)]
        kept = dict(counts=counts, sha256=_digest(dataset), schema=dataset.schema.as_dict())
        write_whole(folder.data, json.dumps(kept, indent=1) + "\n")


def check_unchanged(folder: RunFolder, config: Config, dataset: Dataset) -> None:
    """Refuses to take other data for that of a run."""
    if config.data.is_own and _read(folder)["sha256"] != _digest(dataset):
        raise ConfigError(
            f"{dataset.name} is not what it was when {folder.path} began. Train anew, or evaluate "
            f"the new data: jpc eval {folder.path} --data FILE; or go on with it all the same: "
            f"jpc train --resume {folder.path} --anyway."
        )


def _digest(dataset: Dataset) -> str:
    arrays = [*dataset.train, *dataset.test]
    return hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()


def _read(folder: RunFolder) -> dict[str, Any]:
    if not folder.data.is_file():
        raise ConfigError(f"{folder.path} has no data.json, which says what its data was.")
    try:
        return json.loads(folder.data.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{folder.data} is damaged: {error}.") from None


class New(NamedTuple):
    """New examples for a run: they are the test data of the data set. `names` are theirs;
    `labelled` says whether they have targets.
    """

    dataset: Dataset
    names: Sequence[str]
    labelled: bool


def read_new(folder: RunFolder, config: Config, file: str, *, targets: bool = True) -> New:
    """Examples of a new file, normalised as those of the run were. The training data need not be
    there any more: zeros stand in for it, for what it stopped by, and for targets that are not
    wanted.
    """
    if file in NAMES and not Path(file).exists():
        said = f"{file} is a data set, and not a file of new examples"
        raise ConfigError(f"{said}: jpc eval {folder.path} evaluates a run on that of its own.")
    if config.data.is_own:
        kept = _read(folder)
        schema, count = read_schema(kept["schema"]), kept["counts"][0]
    else:
        schema = published_schema(config.data.dataset)
        count = len(load(config.data.dataset, progress=False).train[1])
    with refused():
        part = read_like(file, schema, targets=targets)
        known = _zeros(schema, len(part.names))
        if part.targets is not None:
            known = schema.encode(part.targets, file)
    flat = config.network.kind == "mlp"
    inputs = part.inputs.reshape(len(part.inputs), -1) if flat else part.inputs
    train = np.zeros((count, *inputs.shape[1:]), np.float32), _zeros(schema, count)
    held_out = (train[0][:1], train[1][:1]) if config.training.patience else None
    parts: Any = dict(train=train, validation=held_out, test=(inputs, known))
    dataset = Dataset(name=file, schema=schema, **parts)
    return New(dataset, part.names, part.targets is not None)


def _zeros(schema: Schema, count: int) -> np.ndarray:
    if schema.classes:
        return np.zeros(count, np.int32)
    return np.zeros((count, len(schema.targets)), np.float32)
