"""Trains the network of a cell, and looks at where it stands from time to time."""

import dataclasses
import functools as ft
import math
import statistics
import time
from collections.abc import Callable
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
WEIGHT_DECAY, WARM_UP = 5e-4, 0.05


class Data(NamedTuple):
    """On the device, labels as one-hot vectors."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array


@ft.lru_cache(maxsize=1)
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
    return optax.adamw(schedule, weight_decay=WEIGHT_DECAY)


def pose(layers: Layers, x: Array, y: Array) -> tuple[Nodes, Nodes]:
    return jpc.clamp(feedforward_batch(layers, x)[:-1], y, x)


class Going(NamedTuple):
    """A network that is being trained."""

    arrays: PyTree
    opt_state: PyTree


class Trainer(NamedTuple):
    """What trains networks of a kind by a rule: `train` takes a network, the rows of a chunk of
    batches, a key and a strength. `memory`: what its program needs besides them, in bytes.
    """

    train: Callable[[Going, Array, Array, Array], Going]
    memory: float


@ft.lru_cache(maxsize=4)
def make_trainer(cell: Cell) -> Trainer:
    """Of a cell, whatever its seed and its strength."""
    data = load(cell.dataset, cell.images)
    optim, rule = optimiser(cell, steps_of(cell, data)), RULES[cell.rule]
    going, static = begin(cell)
    energy = rule.energy(cell.loss, len(static))

    def step(going: Going, x: Array, y: Array, key: Array, strength: Array) -> Going:
        layers = eqx.combine(going.arrays, static)
        x = jpc.data.augment(key, x) if cell.dataset == "cifar10" and cell.images else x
        nodes, clamps = pose(layers, x, y)
        inferred = rule.make(strength)(energy, layers, nodes, clamps)
        lesson, nodes = inferred.lesson or (energy, inferred.nodes)
        grads = eqx.filter_grad(lesson)(layers, nodes, clamps)
        updates, state = optim.update(grads, going.opt_state, going.arrays)
        return Going(eqx.apply_updates(going.arrays, updates), state)

    @ft.partial(jax.jit, donate_argnums=0)
    def train(going: Going, data: Data, rows: Array, key: Array, strength: Array) -> Going:
        keys = jr.split(key, len(rows))
        take = lambda rows: (data.x[rows], data.y[rows])
        one = lambda going, given: (step(going, *take(given[0]), given[1], strength), None)
        return jax.lax.scan(one, going, (rows, keys))[0]

    steps = steps_of(cell, data)
    rows = jnp.zeros((steps // min(_CHUNKS, steps), cell.batch), int)
    program = train.lower(going, data, rows, jr.key(0), jnp.asarray(1.0)).compile()
    given_data = lambda going, *given: program(going, data, *given)
    memory = program.memory_analysis()
    return Trainer(given_data, math.nan if memory is None else float(memory.temp_size_in_bytes))


def begin(cell: Cell) -> tuple[Going, Layers]:
    """A network before training, and what of it does not learn."""
    data = load(cell.dataset, cell.images)
    layers = make_layers(cell, data.x.shape[1:], data.y.shape[1])
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)
    return Going(arrays, optimiser(cell, steps_of(cell, data)).init(arrays)), static


def trainer_of(cell: Cell) -> Trainer:
    return make_trainer(dataclasses.replace(cell, seed=0, strength=None))


@eqx.filter_jit
def accuracy(layers: Layers, x: Array, y: Array) -> Array:
    """In percent."""
    predict = lambda x: jpc.feedforward(layers, x)[-1]
    return jpc.compute_accuracy(y, jax.lax.map(predict, x, batch_size=500))


@eqx.filter_jit
def regime(cell: Cell, strength: Array, layers: Layers, x: Array, y: Array) -> dict[str, Array]:
    """Where a network stands, on some examples."""
    rule = RULES[cell.rule]
    energy, given = rule.energy(cell.loss, len(layers)), pose(layers, x, y)
    inferred = rule.make(strength)(energy, layers, *given)
    how: Any = dict(transform=lambda p: p, split=lambda grads: grads)
    found = compare(energy, inferred, layers, *given, **how)
    return {name: jnp.mean(found[name]) for name in _MEANS}


def run_cell(cell: Cell, advance: Advance) -> dict[str, Any]:
    """Trains a cell, and returns what was measured: the test accuracy after each epoch, the
    regime at some moments, the time of an epoch, that of training relative to backpropagation in
    the same run, and the memory that the program needs.
    """
    data, trainer = load(cell.dataset, cell.images), trainer_of(cell)
    going, static = begin(cell)
    strength = jnp.asarray(1.0 if cell.strength is None else cell.strength)
    rng, key = np.random.default_rng(cell.seed), jr.key(1000 + cell.seed)
    looks = {round(e) for e in np.linspace(0, cell.epochs, min(_MOMENTS, cell.epochs + 1))}
    alike = dataclasses.replace(cell, seed=0, strength=None)
    some = data.x[:_LOOKED_AT], data.y[:_LOOKED_AT]

    def look(epoch: int) -> dict[str, float]:
        layers = eqx.combine(going.arrays, static)
        return dict(epoch=epoch) | jax.device_get(regime(alike, strength, layers, *some))

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
    as_floats = [{name: float(x) for name, x in look.items()} for look in regimes]
    return dict(
        accuracies=accuracies,
        regimes=as_floats,
        seconds=statistics.median(times[1:] or times),
        cost=cost_of(cell, going),
        memory=trainer.memory / trainer_of(dataclasses.replace(cell, rule="backprop")).memory,
    )


def shuffle(rng: np.random.Generator, cell: Cell, data: Data) -> Array:
    """The rows of the batches of an epoch, in chunks."""
    steps = steps_of(cell, data)
    order = rng.permutation(_examples(cell, data))[: steps * cell.batch]
    return jnp.asarray(order.reshape(min(_CHUNKS, steps), -1, cell.batch))


def cost_of(cell: Cell, going: Going) -> float:
    """The time of a rule relative to backpropagation, taken in turns: medians."""
    theirs = dataclasses.replace(cell, rule="backprop")
    programs = [trainer_of(cell).train, trainer_of(theirs).train]
    rows = shuffle(np.random.default_rng(0), cell, load(cell.dataset, cell.images))[0]
    given = rows, jr.key(0), jnp.asarray(1.0 if cell.strength is None else cell.strength)
    times: list[list[float]] = [[], []]
    for turn in range(_TURNS + 1):
        for program, mine in zip(programs, times, strict=True):
            copied = jax.block_until_ready(jax.tree.map(jnp.copy, going))  # It is donated.
            start = time.perf_counter()
            jax.block_until_ready(program(copied, *given))
            if turn:
                mine.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
