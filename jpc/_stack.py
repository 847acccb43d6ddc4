"""Runs of equal layers, with their arrays stacked: one part of a compiled program, not one for
each.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._device import accelerated, rounds_products
from ._layer import apply, join, split
from ._types import Layers


class Stack(eqx.Module):
    """Equal layers one after the other, their arrays stacked."""

    arrays: list[Array | None]
    fixed: Any = eqx.field(static=True)


def find_runs(layers: Layers, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """How many layers in a row are equal but for the values of their arrays, given the shapes of
    the states that enter them.
    """

    def kind(layer: Callable, shape: tuple[int, ...]):
        fixed, arrays = split(layer)
        return fixed, [None if x is None else (x.shape, x.dtype) for x in arrays], shape

    kinds = [kind(layer, shape) for layer, shape in zip(layers, shapes, strict=True)]
    return tuple(len(list(run)) for _, run in itertools.groupby(kinds))


def gather(runs: tuple[int, ...], items: Any) -> list:
    """One entry for each run, stacked where there are several."""
    items = iter(items)
    groups = [list(itertools.islice(items, n)) for n in runs]
    return [group[0] if len(group) == 1 else _stack(group) for group in groups]


def _stack(items: list) -> Any:
    if eqx.is_array(items[0]):
        return jnp.stack(items)
    fixed, _ = split(items[0])
    columns = zip(*(split(layer)[1] for layer in items), strict=True)
    return Stack([None if c[0] is None else jnp.stack(c) for c in columns], fixed)


def predict(layers: Layers, inputs: Sequence[Array], *, compared: bool) -> list[Array]:
    """Each layer's prediction from the state that enters it. On an accelerator, where starting a
    product of matrices can take longer than the product, equal layers make theirs at once. But
    not if products are rounded to few digits and predictions are `compared` with states that were
    predicted one by one: both must be rounded alike, or their difference is rounding. (At full
    precision it is, to 1e-7, for the time that it saves.)
    """
    if not accelerated() or (compared and rounds_products()):
        return [apply(layer, z) for layer, z in zip(layers, inputs, strict=True)]
    runs, predictions = find_runs(layers, [z.shape for z in inputs]), []
    for length, stack, z in zip(runs, gather(runs, layers), gather(runs, inputs), strict=True):
        predictions += [apply(stack, z)] if length == 1 else list(apply_each(stack, z))
    return predictions


def pass_one(layer: Callable, z: Array, error: Array) -> tuple[Array, Array]:
    z = apply(layer, z) + error
    return z, z


def pass_several(stack: Stack, z: Array, errors: Array) -> tuple[Array, Array]:
    def body(z, item):
        arrays, error = item
        return pass_one(join(stack.fixed, arrays), z, error)

    return jax.lax.scan(body, z, (stack.arrays, errors))


def apply_each(stack: Stack, inputs: Array) -> Array:
    return jax.vmap(lambda arrays, z: apply(join(stack.fixed, arrays), z))(stack.arrays, inputs)
