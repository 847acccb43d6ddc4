"""Where batches come from: arrays that are on the device as a whole, or an iterator."""

import abc
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from .._given import show
from .devices import Devices
from .fingerprint import Digests, digest_arrays
from .loop import Carry, Pair, Recipe, group_size, in_order, score, score_batch, train, train_batch
from .pair import Classes, count, count_classes, describe, read_pair

# Of the examples in an epoch, from a key, their number and where to put it.
Order = Callable[[PRNGKeyArray, int, Devices], Int[Array, " examples"]]


class AbstractData(abc.ABC):
    """Data to train on or to test with, for one run.

    `examples` is how many examples there are and `steps` how many steps an epoch has, where
    that is known; `classes` how many classes the input and the output have, if they are labels;
    `shapes` what a batch looks like.
    """

    examples: int | None = None
    steps: int | None = None
    classes: Classes
    shapes: PyTree[jax.ShapeDtypeStruct]

    @abc.abstractmethod
    def open(self, key: PRNGKeyArray, epoch: int, start: int) -> Any:
        """Begins an epoch, or goes on with it."""

    @abc.abstractmethod
    def advance(
        self, recipe: Recipe, opened: Any, key: PRNGKeyArray, bounds: tuple[int, int], carry: Carry
    ) -> tuple[Carry, int]:
        """Takes the steps within bounds, and says how far it came: if that is not as far as it
        was asked to, the epoch is over.
        """

    @abc.abstractmethod
    def score(self, recipe: Recipe, state: PyTree, key: PRNGKeyArray) -> PyTree:
        """The sums of what is said of each example, and how many they are."""

    @abc.abstractmethod
    def fingerprint(self) -> Digests:
        """What tells this data from other data."""


class Arrays(AbstractData):
    """All on the device."""

    def __init__(
        self, pair: Pair, batch_size: int, classes: Classes, devices: Devices, order: Order
    ):
        self.examples, self.classes, self.devices = count(pair), classes, devices
        self.order = order
        self.steps = self.examples // batch_size
        self.pair = devices.put_data(pair)
        self.shapes = _shapes(self.pair, batch_size)

    def open(self, key, epoch, start):
        del epoch, start
        return self.order(key, count(self.pair), self.devices)

    def advance(self, recipe, opened, key, bounds, carry):
        start, group = bounds[0], group_size()
        stop = min(start - (start - bounds[1]) // group * group, self.steps or 0)
        given = (recipe, self.pair, opened, key, np.asarray(start), np.asarray(stop))
        return train(given, carry), stop

    def score(self, recipe, state, key):
        return score(recipe, state, self.pair, key)

    def fingerprint(self):
        return digest_arrays(self.pair)


class Batches(AbstractData):
    """One batch after the other; every process has its own share of each."""

    def __init__(self, name: str, given: Any, batch_size: int, classes: Classes, devices: Devices):
        self.name, self.given, self.devices = name, given, devices
        self.share = batch_size // devices.processes
        example = next(self._batches(0), None)
        if example is None:
            raise ValueError("The iterator gave no batches.")
        self.classes = count_classes("An iterator", example, classes, complete=False)
        self.shapes = _shapes(jax.tree.map(jnp.asarray, example), batch_size)
        self._first = digest_arrays(example)  # Now: its arrays may be used again.

    def open(self, key, epoch, start):
        del key
        full = (pair for pair in self._batches(epoch) if count(pair) == self.share)
        return _ahead(map(self._put, itertools.islice(full, start, None)))

    def advance(self, recipe, opened, key, bounds, carry):
        start, stop = bounds
        for batch in itertools.islice(opened, stop - start):
            given = (recipe, batch, key, np.asarray(start))
            carry, start = train_batch(given, carry), start + 1
        return carry, start

    def score(self, recipe, state, key):
        batches = _ahead(map(self._put, map(self._fill, self._batches(0))))
        sums = [
            score_batch(recipe, state, batch, np.asarray(i), key)
            for i, batch in enumerate(batches)
        ]
        return jax.tree.map(lambda *x: sum(x), *sums)

    def fingerprint(self):
        """The first batch of the first epoch stands for all."""
        return self._first

    def _batches(self, epoch: int) -> Iterator[Pair]:
        for batch in _call(self.name, self.given, epoch) if callable(self.given) else self.given:
            pair = read_pair("A batch of an iterator", batch)
            if count(pair) > self.share:
                raise ValueError(
                    f"An iterator gave a batch of {count(pair)} examples, but by batch_size "
                    f"there are at most {self.share} of them (for each process)."
                )
            yield pair

    def _put(self, batch: tuple) -> tuple:
        count_classes("An iterator", batch[:2], self.classes)
        return self.devices.put_batch(batch)

    def _fill(self, pair: Pair) -> tuple:
        """A batch filled up with copies of its last example, and which ones are real."""
        rows = np.arange(self.share)
        filled = jax.tree.map(lambda x: np.take(x, rows, axis=0, mode="clip"), pair)
        return *filled, rows < count(pair)


def _call(name: str, make: Callable, epoch: int) -> Iterable:
    """The batches of an epoch, from a function of it."""
    try:
        inspect.signature(make).bind(epoch)
    except TypeError as error:
        raise TypeError(
            f"{name} is a function, and gets the epoch, lambda epoch: ..., which this one does "
            f"not take: {error}."
        ) from None
    except ValueError:  # One that has no signature.
        pass
    batches = make(epoch)
    if isinstance(batches, tuple | dict | str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"{name} is a function of the epoch, and must return batches to iterate over, such as "
            f"[(input, output), ...], got {describe(batches)}."
        )
    return batches


def _ahead(batches: Iterator[tuple]) -> Iterator[tuple]:
    """The same batches; the next one is prepared while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            yield batch


def choose_data(
    name: str,
    given: Any,
    batch_size: int,
    classes: Classes,
    devices: Devices,
    order: Order = in_order,
) -> AbstractData:
    """A pair of arrays, or of trees of them, which is a tuple of two; or batches from what can be
    iterated over again and again.
    """
    if isinstance(given, tuple) and len(given) == 2:
        pair = read_pair(name, given)
        return Arrays(pair, batch_size, count_classes(name, pair, classes), devices, order)
    if isinstance(given, tuple) and any(isinstance(x, jax.Array | np.ndarray) for x in given):
        raise TypeError(
            f"{name} must be a pair (input, output), got {describe(given)}. What else belongs to "
            "an example goes into one of the two as a tree, such as ((x, mask), y)."
        )
    lone = isinstance(given, jax.Array | np.ndarray) and given.ndim == 0
    many = callable(given) or isinstance(given, Iterable)
    if isinstance(given, dict | str) or lone or not many:
        raise TypeError(
            f"{name} must be a pair of arrays (input, output), or of trees of them, or something "
            f"that gives such batches whenever it is iterated over, got {show(given)}."
        )
    if isinstance(given, Iterator):
        raise TypeError(
            f"{name} is an iterator, which is spent after one epoch: give a list or a loader of "
            f"batches, or a function of the epoch that makes the iterator, lambda epoch: ..."
        )
    return Batches(name, given, batch_size, classes, devices)


def _shapes(pair: Pair, batch_size: int) -> PyTree[jax.ShapeDtypeStruct]:
    shape = lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), x.dtype)
    return jax.tree.map(shape, pair)
