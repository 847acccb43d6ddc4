"""Trains the network of a cell, and looks at where it stands from time to time."""

import dataclasses
import functools as ft
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PyTree

import jpc
import jpc.data

from .._jobs import Advance
from .._layer import feedforward_batch
from .._regime import compare
from .._types import Layers, Nodes
from ._table import RULES, Cell, make_layers

_CHUNKS = 10  # Of an epoch: what one program trains, and what times are taken of.
_TURNS = 5  # Of timing a rule and backpropagation.
_LOOKED_AT = 256  # Examples to measure the regime with.
_MOMENTS = 6  # Of training, at which it is measured.
_MEANS = ("mean_eigenvalue", "largest_eigenvalue", "mean_sensitivity", "angle", "successful")
WARM_UP = 0.05
_ALONE = threading.Lock()  # Held by what compiles, and by what takes times.


class Data(NamedTuple):
    """On the device, labels as one-hot vectors."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


@ft.lru_cache(maxsize=2)
def load(dataset: str, images: bool) -> Data:
    found = jpc.data.load(dataset, flatten=not images, download=False)
    one_hot = lambda labels: jax.nn.one_hot(jnp.asarray(labels), len(found.classes))
    (x, y), (test_x, test_y) = found.train, found.test
    return Data(jnp.asarray(x), one_hot(y), jnp.asarray(test_x), one_hot(test_y))


def _examples(cell: Cell, data: Data) -> int:
    return len(data.x) if cell.examples is None else min(cell.examples, len(data.x))


def steps_of(cell: Cell, data: Data) -> int:
    """In an epoch: what divides into chunks of equal length."""
    steps = _examples(cell, data) // cell.batch
    if steps == 0:
        raise ValueError(f"{cell.dataset} has fewer than {cell.batch} examples to train with.")
    return steps if steps < _CHUNKS else steps // _CHUNKS * _CHUNKS


def optimiser(cell: Cell, steps: int) -> optax.GradientTransformation:
    """AdamW, warmed up and then falling to zero: the same for every rule."""
    whole = cell.epochs * steps
    rise = max(math.ceil(WARM_UP * whole), 1)
    schedule = optax.warmup_cosine_decay_schedule(0.0, cell.learning_rate, rise, whole + 1)
    adam = optax.adamw(schedule, weight_decay=cell.weight_decay)
    return adam if cell.clip is None else optax.chain(optax.clip_by_global_norm(cell.clip), adam)


def pose(layers: Layers, x: Array, y: Array) -> tuple[Nodes, Nodes]:
    return jpc.clamp(feedforward_batch(layers, x)[:-1], y, x)


class Going(NamedTuple):
    """A network that is being trained."""

    arrays: PyTree
    opt_state: PyTree


class Trainer(NamedTuple):
    """The programs of a kind of cell.

    - `train`: takes a network, the rows of a chunk of batches, a key and a strength.
    - `look`: the regime of a network, for a strength.
    - `memory`: what `train` needs besides its arguments, in bytes.
    """

    train: Callable[[Going, Array, Array, Array], Going]
    look: Callable[[PyTree, Array], dict[str, Array]]
    memory: float


def make_trainer(kind: Cell) -> Trainer:
    with _ALONE:
        return _compile(kind)


def _compile(kind: Cell) -> Trainer:
    data = load(kind.dataset, kind.images)
    optim, rule = optimiser(kind, steps_of(kind, data)), RULES[kind.rule]
    going, static = begin(kind)
    energy = rule.energy(kind.loss)

    def step(going: Going, x: Array, y: Array, key: Array, strength: Array) -> Going:
        layers = eqx.combine(going.arrays, static)
        x = jpc.data.augment(key, x) if kind.dataset == "cifar10" and kind.images else x
        nodes, clamps = pose(layers, x, y)
        inferred = rule.make(strength)(energy, layers, nodes, clamps)
        lesson, nodes = inferred.lesson or (energy, inferred.nodes)
        grads = eqx.filter_grad(lesson)(layers, nodes, clamps)
        updates, state = optim.update(grads, going.opt_state, going.arrays)
        return Going(eqx.apply_updates(going.arrays, updates), state)

    def train(going: Going, data: Data, rows: Array, key: Array, strength: Array) -> Going:
        keys = jr.split(key, len(rows))
        take = lambda rows: (data.x[rows], data.y[rows])
        one = lambda going, given: (step(going, *take(given[0]), given[1], strength), None)
        return jax.lax.scan(one, going, (rows, keys))[0]

    def look(arrays: PyTree, data: Data, strength: Array) -> dict[str, Array]:
        layers = eqx.combine(arrays, static)
        given = pose(layers, data.x[:_LOOKED_AT], data.y[:_LOOKED_AT])
        inferred = rule.make(strength)(energy, layers, *given)
        how: Any = dict(transform=lambda p: p, split=lambda grads: grads)
        found = compare(energy, inferred, layers, *given, **how)
        return {name: jnp.mean(found[name]) for name in _MEANS}

    steps, strength = steps_of(kind, data), jnp.asarray(1.0)
    rows = jnp.zeros((steps // min(_CHUNKS, steps), kind.batch), int)
    compiled = lambda fn, *given, **how: jax.jit(fn, **how).lower(*given).compile()
    trains = compiled(train, going, data, rows, jr.key(0), strength, donate_argnums=0)
    looks = compiled(look, going.arrays, data, strength)
    memory = trains.memory_analysis()
    return Trainer(
        lambda going, *given: trains(going, data, *given),
        lambda arrays, strength: looks(arrays, data, strength),
        math.nan if memory is None else float(memory.temp_size_in_bytes),
    )


@eqx.filter_jit
def accuracy(layers: Layers, x: Array, y: Array) -> Array:
    """In percent."""
    predict = lambda x: jpc.feedforward(layers, x)[-1]
    return jpc.compute_accuracy(y, jax.lax.map(predict, x, batch_size=500))


@contextmanager
def compiling(cells: Sequence[Cell]) -> Iterator[Mapping[Cell, Future[Trainer]]]:
    """The programs of some cells by their kinds, compiled in this order while others train, and
    those of backpropagation, to which each is compared.
    """
    pairs = [(cell.kind, _backprop(cell)) for cell in cells]
    kinds = dict.fromkeys(kind for pair in pairs for kind in pair)
    pool = ThreadPoolExecutor(1)
    try:
        yield {kind: pool.submit(make_trainer, kind) for kind in kinds}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _backprop(cell: Cell) -> Cell:
    return dataclasses.replace(cell.kind, rule="backprop")


def begin(cell: Cell) -> tuple[Going, Layers]:
    """A network before training, and what of it does not learn."""
    data = load(cell.dataset, cell.images)
    layers = make_layers(cell, data.x.shape[1:], data.y.shape[1])
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)
    return Going(arrays, optimiser(cell, steps_of(cell, data)).init(arrays)), static


def run_cell(
    cell: Cell, programs: Mapping[Cell, Future[Trainer]], advance: Advance
) -> dict[str, Any]:
    """Trains a cell, and returns what was measured: the test accuracy after each epoch, the
    regime at some moments, the time of an epoch, that of training relative to backpropagation in
    the same run, and the memory that the program needs.
    """
    trainer, theirs = programs[cell.kind].result(), programs[_backprop(cell)].result()
    data, (going, static) = load(cell.dataset, cell.images), begin(cell)
    strength = jnp.asarray(1.0 if cell.strength is None else cell.strength)
    rng, key = np.random.default_rng(cell.seed), jr.key(1000 + cell.seed)
    looks = {round(e) for e in np.linspace(0, cell.epochs, min(_MOMENTS, cell.epochs + 1))}

    def look(epoch: int) -> dict[str, float]:
        return dict(epoch=epoch) | jax.device_get(trainer.look(going.arrays, strength))

    accuracies, times, regimes = [], [], [look(0)]
    for epoch in range(1, cell.epochs + 1):
        start = time.perf_counter()
        chunks = shuffle(rng, cell, data)
        for number, rows in enumerate(chunks):
            now = jr.fold_in(key, epoch * _CHUNKS + number)
            going = trainer.train(going, rows, now, strength)
            advance(1 / (cell.epochs * len(chunks)))
        jax.block_until_ready(going)
        times.append(time.perf_counter() - start)
        layers = eqx.combine(going.arrays, static)
        accuracies.append(float(accuracy(layers, data.test_x, data.test_y)))
        if epoch in looks:
            regimes.append(look(epoch))
    with _ALONE:
        cost = cost_of(cell, going, trainer, theirs)
    as_floats = [{name: float(x) for name, x in look.items()} for look in regimes]
    return dict(
        accuracies=accuracies,
        regimes=as_floats,
        seconds=statistics.median(times[1:] or times),
        cost=cost,
        memory=trainer.memory / theirs.memory,
    )


def shuffle(rng: np.random.Generator, cell: Cell, data: Data) -> Array:
    """The rows of the batches of an epoch, in chunks."""
    steps = steps_of(cell, data)
    order = rng.permutation(_examples(cell, data))[: steps * cell.batch]
    return jnp.asarray(order.reshape(min(_CHUNKS, steps), -1, cell.batch))


def cost_of(cell: Cell, going: Going, mine: Trainer, theirs: Trainer) -> float:
    """The time of a rule relative to backpropagation, taken in turns: medians."""
    rows = shuffle(np.random.default_rng(0), cell, load(cell.dataset, cell.images))[0]
    given = rows, jr.key(0), jnp.asarray(1.0 if cell.strength is None else cell.strength)
    times: list[list[float]] = [[], []]
    for turn in range(_TURNS + 1):
        for trainer, taken in zip((mine, theirs), times, strict=True):
            copied = jax.block_until_ready(jax.tree.map(jnp.copy, going))  # It is donated.
            start = time.perf_counter()
            jax.block_until_ready(trainer.train(copied, *given))
            if turn:
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
