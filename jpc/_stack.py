"""Predictions of many layers, those of equal ones at once where that is faster."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._device import accelerated, rounds_products
from ._fixed import join, split
from ._layer import apply
from ._types import Layers


def predict(
    layers: Layers, inputs: Sequence[tuple], *, names: Sequence[str], compared: bool
) -> list[Array]:
    """Each layer's prediction from the states that enter it; an error begins with its name. On an
    accelerator, where starting a product of matrices can take longer than the product, equal
    layers make theirs at once. But not if products are rounded to few digits and predictions are
    `compared` with states that were predicted one by one: both must be rounded alike, or their
    difference is rounding. (At full precision they are, unless products are tuned: `_checks`.)
    """
    if not accelerated() or (compared and rounds_products()):
        each = zip(layers, inputs, names, strict=True)
        return [apply(layer, *z, name=name) for layer, z, name in each]
    runs, predictions = find_runs(layers, inputs), []
    remaining = iter(zip(layers, inputs, names, strict=True))
    for length in runs:
        group, entering, named = zip(*itertools.islice(remaining, length), strict=True)
        one = length == 1
        predictions += (
            [apply(group[0], *entering[0], name=named[0])] if one else _at_once(group, entering)
        )
    return predictions


def find_runs(layers: Layers, inputs: Sequence[tuple]) -> tuple[int, ...]:
    """How many layers in a row are equal but for the values of their arrays."""

    def kind(layer: Callable, inputs: tuple):
        fixed, arrays = split(layer)
        shapes = [None if x is None else (x.shape, x.dtype) for x in (*arrays, *inputs)]
        return fixed, shapes

    kinds = [kind(layer, z) for layer, z in zip(layers, inputs, strict=True)]
    return tuple(len(list(run)) for _, run in itertools.groupby(kinds))


def _at_once(layers: Layers, inputs: Sequence[tuple]) -> list[Array]:
    fixed, _ = split(layers[0])
    stack = lambda xs: None if xs[0] is None else jnp.stack(xs)
    columns = lambda rows: [stack(column) for column in zip(*rows, strict=True)]
    arrays = columns([split(layer)[1] for layer in layers])
    apply_one = lambda arrays, z: apply(join(fixed, arrays), *z)
    return list(jax.vmap(apply_one)(arrays, columns(inputs)))
