"""What a network says of the test set, example by example."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .setting import Picture, State, softmax
from .tasks import AbstractTask

WORST, MOST_INFERRED, _CHUNK, _COLUMNS = 20, 1000, 1000, 8
MOST_POINTS, _MOST_TARGETS = 1000, 4


class Outcome(NamedTuple):
    """The classes that examples are of and those that they were taken for, by number; how many
    there are; the worst mistakes, as pictures or, where the data are none, as rows with named
    features; and what the network makes of the first images, if it makes any.
    """

    classes: tuple[str, ...]
    truths: np.ndarray
    guesses: np.ndarray
    examples: int
    pictures: tuple[Picture, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    features: tuple[str, ...] = ()
    remade: tuple[Picture, ...] = ()

    def confusion(self) -> np.ndarray:
        """How many examples of each class (row) were taken for each class (column)."""
        counts = np.zeros((len(self.classes), len(self.classes)), int)
        np.add.at(counts, (self.truths, self.guesses), 1)
        return counts

    def confused(self, number: int = 3) -> list[tuple[str, str, int]]:
        """The classes that were taken for others most often: what it is, what was said, how
        often.
        """
        counts = self.confusion()
        np.fill_diagonal(counts, 0)
        order = np.argsort(-counts, axis=None, kind="stable")[:number]
        pairs = [divmod(int(i), len(self.classes)) for i in order]
        return [(self.classes[i], self.classes[j], int(counts[i, j])) for i, j in pairs]


class Prediction(NamedTuple):
    """A number that was predicted of test examples: its name, what it is, and what was said, in
    the units of the data.
    """

    name: str
    truths: list[float]
    guesses: list[float]


def predict_numbers(task: AbstractTask, state: State) -> list[Prediction]:
    """Those of the first test examples, if the task is to predict any."""
    dataset = task.setting.dataset
    if task.setting.config.data.task != "regression":
        return []
    inputs, targets = (array[:MOST_POINTS] for array in dataset.test)
    made = _in_chunks(lambda x: task.predict(state, jnp.asarray(x, float)), inputs)
    if not np.all(np.isfinite(made)):
        return []
    both = (dataset.schema.decode(numbers).T.tolist() for numbers in (targets, made))
    columns = zip(dataset.schema.targets, *both, strict=True)
    return [Prediction(*column) for column in columns][:_MOST_TARGETS]


def observe(task: AbstractTask, state: State) -> Outcome | None:
    """The outcome on the test set, or on its beginning where a class must be inferred; `None`
    for a task without classes.
    """
    dataset, kind = task.setting.dataset, task.setting.config.data.task
    if kind == "unsupervised" or not dataset.classes:
        return None
    size = len(dataset.test[1]) if kind == "discriminative" else MOST_INFERRED
    images, labels = (array[:size] for array in dataset.test)
    scores = _in_chunks(lambda x: task.predict(state, jnp.asarray(x, float)), images)
    if not (len(scores) and np.all(np.isfinite(scores))):
        return None
    is_image, remade = len(dataset.shape) == 3, ()
    if is_image and (made := task.imagine(state, jnp.asarray(scores[:10], float))) is not None:
        remade = tuple(task.setting.reconstructions(images[:10], made))
    sure = task.setting.config.energy.loss == "ce"
    scores = softmax(scores) if sure else scores
    guesses, each = np.argmax(scores, axis=1), np.arange(len(labels))
    margins = scores[each, guesses] - scores[each, labels]
    worst = [int(i) for i in np.argsort(-margins, kind="stable")[:WORST] if margins[i] > 0]
    known = (dataset.classes, np.asarray(labels), guesses, len(dataset.test[1]))
    names = dataset.classes
    said = [(names[guesses[i]], names[labels[i]]) for i in worst]
    chances = [f" ({100 * scores[i, guesses[i]]:.0f} %)" * sure for i in worst]
    if is_image:
        captions = [f"{a}{p}, is {b}" for (a, b), p in zip(said, chances, strict=True)]
        found = dataset.restore(images[worst]) if worst else ()
        shown = map(Picture, found, captions, [False] * len(worst))
        return Outcome(*known, pictures=tuple(shown), remade=remade)
    found = dataset.restore(images[worst]) if worst else np.zeros((0, *dataset.shape))
    inputs = found.reshape(len(worst), math.prod(dataset.shape))[:, :_COLUMNS]
    rows = [
        (f"{i}", b, a + p, *(f"{x:.4g}" for x in row))
        for i, (a, b), p, row in zip(worst, said, chances, inputs, strict=True)
    ]
    features = tuple(dataset.schema.inputs[:_COLUMNS])
    return Outcome(*known, rows=tuple(rows), features=features, remade=remade)


def _in_chunks(scores: Callable[[np.ndarray], Any], images: np.ndarray) -> np.ndarray:
    """Of all images, so many at a time that they fit, and always as many."""
    size, found = max(1, min(_CHUNK, len(images))), []
    for start in range(0, len(images), size):
        chunk = images[start : start + size]
        found.append(scores(np.resize(chunk, (size, *chunk.shape[1:])))[: len(chunk)])
    return np.concatenate(found) if found else np.zeros((0, 0))
