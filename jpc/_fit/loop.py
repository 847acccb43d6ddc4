"""The compiled part of training: many steps, or all of a test set, in one call."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from .._checks import all_finite, checks
from .._device import accelerated
from .devices import Devices, copy

Pair = tuple[Any, Any]


_REFRESH = 16  # Steps after which a method learns again what it carries along.


class Carry(eqx.Module):
    """What a step changes: the arrays of the state, the sums of the metrics so far, and those of
    a method of inference that is carried along.
    """

    state: PyTree
    sums: PyTree
    method: PyTree = None


class Recipe(eqx.Module):
    """What stays the same from step to step. `rest` is all of the state that is no array.

    A program that raises is `checked`; one that is not marks what fails with NaNs, which somebody
    looks for later. Only those can be kept in JAX's cache.
    """

    fn: Callable
    rest: PyTree
    metrics: tuple[str, ...] = eqx.field(static=True)
    classes: tuple[int | None, int | None] = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    devices: Devices
    checked: bool = eqx.field(static=True, default=False)
    method: PyTree = None

    def __call__(
        self, arrays: PyTree, batch: Pair, key: PRNGKeyArray, method: PyTree = None
    ) -> Any:
        input, output = map(one_hot, batch, self.classes)
        state = eqx.combine(arrays, self.rest)
        if method is not None:
            state = state | dict(inference=eqx.combine(method, self.method))
        with checks("raise" if self.checked else "nan"):
            return self.fn(**state, output=output, input=input, key=key)


def one_hot(side: PyTree, classes: int | None) -> PyTree:
    """Labels as vectors; anything else as it is."""
    return side if classes is None else jax.nn.one_hot(side, classes)


def measure(metrics: tuple[str, ...], result: Mapping[str, Any]) -> dict[str, PyTree]:
    named = {name: result[name] for name in metrics if result[name] is not None}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(float)), named)


@eqx.filter_jit
def shuffled(key: PRNGKeyArray, examples: int, devices: Devices) -> Int[Array, " examples"]:
    """A random order of the examples in an epoch."""
    return devices.constrain(jr.permutation(key, examples))


@eqx.filter_jit
def in_order(key: PRNGKeyArray, examples: int, devices: Devices) -> Int[Array, " examples"]:
    """The order in which they are."""
    del key
    return devices.constrain(jnp.arange(examples))


@eqx.filter_jit(donate="all-except-first")
def train(given: tuple, carry: Carry) -> Carry:
    """Takes the steps `start` to `stop` of an epoch over arrays. The bounds are traced, so that
    it compiles once for all lengths; one turn of the loop is a group of steps.
    """
    recipe, data, order, key, start, stop = given
    size, group = recipe.batch_size, group_size()

    def step(carry, i):
        rows = jax.lax.dynamic_slice(order, (i * size,), (size,))
        batch = recipe.devices.constrain_batch(jax.tree.map(lambda x: x[rows], data))
        new = _step(recipe, carry, batch, jr.fold_in(key, i))
        if group == 1:
            return new, None
        return jax.tree.map(lambda new, old: jnp.where(i < stop, new, old), new, carry), None

    def turn(j, carry):
        first = start + j * group
        rows = jax.lax.dynamic_slice(order, (first * size,), (size,))
        carry = _refresh(recipe, carry, lambda: jax.tree.map(lambda x: x[rows], data), key, first)
        return jax.lax.scan(step, carry, first + jnp.arange(group))[0]

    return jax.lax.fori_loop(0, -((start - stop) // group), turn, carry)


def group_size() -> int:
    """How many steps are taken for one turn of a loop."""
    return _REFRESH if accelerated() else 1


def _refresh(recipe: Recipe, carry: Carry, batch: Any, key: PRNGKeyArray, i: Any) -> Carry:
    """Every few steps a method that is carried along learns again, from the next batch. All else
    that a step does is not needed for that, and XLA leaves it out.
    """
    if carry.method is None:
        return carry

    def learn(_):
        constrained = recipe.devices.constrain_batch(batch())
        method = recipe(carry.state, constrained, jr.fold_in(key, i))["inference"]
        return recipe.devices.constrain(_like(carry.method, eqx.filter(method, eqx.is_array)))

    # A group of steps begins with it, so that an accelerator need not ask.
    whole = group_size() == _REFRESH
    method = (
        learn(None)
        if whole
        else jax.lax.cond(
            (i % _REFRESH == 0) | _is_unlearned(carry.method), learn, lambda old: old, carry.method
        )
    )
    return Carry(carry.state, carry.sums, method)


def unlearned(shapes: PyTree) -> PyTree:
    """A method that has yet to learn what it carries along."""
    kind = lambda x: np.nan if jnp.issubdtype(x.dtype, jnp.inexact) else 0
    return jax.tree.map(lambda x: np.full(x.shape, kind(x), x.dtype), shapes)


def _is_unlearned(method: PyTree) -> Bool[Array, ""]:
    """Its first numbers tell."""
    first = [x.ravel()[0] for x in jax.tree.leaves(method) if eqx.is_inexact_array(x) and x.size]
    return jnp.any(jnp.isnan(jnp.array(first)))


def _like(old: PyTree, new: PyTree) -> PyTree:
    """New arrays of the types of the old ones."""
    leaves, structure = jax.tree.flatten(old)
    strong = map(lambda new, old: jnp.asarray(new, old.dtype), jax.tree.leaves(new), leaves)
    return jax.tree.unflatten(structure, strong)


@eqx.filter_jit(donate="all-except-first")
def train_batch(given: tuple, carry: Carry) -> Carry:
    """Takes one step on a batch that came from an iterator."""
    recipe, batch, key, i = given
    carry = _refresh(recipe, carry, lambda: batch, key, i)
    return _step(recipe, carry, batch, jr.fold_in(key, i))


def _step(recipe: Recipe, carry: Carry, batch: Pair, key: PRNGKeyArray) -> Carry:
    result = recipe(carry.state, batch, key, carry.method)
    new = eqx.filter({name: result[name] for name in recipe.rest}, eqx.is_array)
    state = recipe.devices.constrain(_like(carry.state, new), recipe.devices.rule)
    sums = jax.tree.map(jnp.add, carry.sums, measure(recipe.metrics, result))
    return Carry(state, recipe.devices.constrain(sums), carry.method)


def keep(carry: Carry) -> Carry | None:
    """A copy of what a call takes away, to find out afterwards what went wrong in it. There is
    none on an accelerator, whose memory is needed.
    """
    return None if accelerated() else copy(carry)


@eqx.filter_jit
def finite(state: PyTree) -> Bool[Array, " arrays"]:
    """Whether each array of a state is. Steps are checked in this way, many at a time."""
    return jnp.array([all_finite(x) for x in jax.tree.leaves(state)])


@eqx.filter_jit
def score(recipe: Recipe, state: PyTree, data: Pair, key: PRNGKeyArray) -> PyTree:
    """The sums of what `recipe` says of each example of a test set, one by one, and how many
    they are. The last batch is filled up, and what fills it is left out of the sums.
    """
    examples = jax.tree.leaves(data)[0].shape[0]
    size = recipe.batch_size

    def part(i):
        rows = i * size + jnp.arange(size)
        batch = jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), data)
        return _score(recipe, state, batch, rows < examples, rows, key)

    add = lambda i, totals: jax.tree.map(jnp.add, totals, part(i))
    totals = zeros(eqx.filter_eval_shape(part, 0))
    return jax.lax.fori_loop(0, -(-examples // size), add, totals)


@eqx.filter_jit
def score_batch(recipe: Recipe, state: PyTree, batch: tuple, i: Any, key: PRNGKeyArray) -> PyTree:
    """As `score`, of the `i`-th batch of an iterator, which was filled up."""
    input, output, real = batch
    rows = i * recipe.batch_size + jnp.arange(recipe.batch_size)
    return _score(recipe, state, (input, output), real, rows, key)


def _score(recipe: Recipe, state: PyTree, batch: Pair, real: Array, rows: Array, key) -> PyTree:
    def one(batch, real, row):
        result = recipe(state, jax.tree.map(lambda x: x[None], batch), jr.fold_in(key, row))
        keep = lambda x: jnp.where(real, x, 0).astype(jnp.result_type(float))
        return jax.tree.map(keep, dict(result)), real.astype(int)

    batch = recipe.devices.constrain_batch(batch)
    scores = jax.vmap(one)(batch, real, rows)
    return recipe.devices.constrain(jax.tree.map(lambda x: jnp.sum(x, axis=0), scores))


def zeros(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
