"""A tree of arrays as one vector."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int, PyTree

from ._device import accelerated


def flatten(tree: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """A tree's arrays as one vector, and the way back, for a loop over such vectors.

    XLA compiles equal computations once, however many layers there are. But on the CPU it makes
    one computation of what is done to a piece of a vector and of where that piece begins, so that
    those of equal layers are not equal. So here it learns at run time where pieces begin.
    """
    leaves, structure = jax.tree.flatten(tree)
    vector, unravel = ravel_pytree(tree)
    alike = len({x.dtype for x in leaves}) == 1 and vector.size > 0
    if accelerated() or not alike:
        return vector, unravel
    sizes, shapes = [x.size for x in leaves], [x.shape for x in leaves]
    starts = _hide([0, *itertools.accumulate(sizes[:-1])], vector)

    def take(vector: Array, starts: list) -> PyTree:
        pieces = [
            jax.lax.dynamic_slice(vector, (start,), (size,)).reshape(shape)
            for start, size, shape in zip(starts, sizes, shapes, strict=True)
        ]
        return structure.unflatten(pieces)

    def pull(starts: list, cotangent: PyTree) -> tuple:
        return ravel_pytree(cotangent)[0], [np.zeros((), jax.dtypes.float0) for _ in starts]

    unpack = jax.custom_vjp(take)
    unpack.defvjp(lambda vector, starts: (take(vector, starts), starts), pull)
    return vector, lambda vector: unpack(vector, starts)


def _hide(numbers: Sequence[int], known: Array) -> list[Int[Array, ""]]:
    """Some numbers, so that XLA does not know them: they come out of a loop that would change
    them, and has no turns.
    """
    more = lambda state: (state[0] - 1, [x + 1 for x in state[1]])
    begin = (_zero(jax.lax.stop_gradient(known)), [jnp.asarray(x, jnp.int32) for x in numbers])
    return jax.lax.while_loop(lambda state: state[0] > 0, more, begin)[1]


@custom_vmap
def _zero(x: Array) -> Int[Array, ""]:
    """Of anything, but XLA does not see that."""
    return (x.ravel()[0] > jnp.inf).astype(jnp.int32)


@_zero.def_vmap
def _(size: int, batched: list, x: Array) -> tuple[Array, bool]:
    """Of the first of many: if each had its own, a slice would be a gather."""
    del size
    return _zero(x[0] if batched[0] else x), False
