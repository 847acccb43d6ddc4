"""Trees as what a compiled program takes and returns: a list of arrays, and all the rest, which is
fixed. To take a tree apart is most of what a call costs, so it happens once.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

_ARRAYS = jax.Array | np.ndarray | np.number  # NumPy's True is as fixed as any.


def split(tree: PyTree) -> tuple[Hashable, list[Any]]:
    """A tree's arrays, `None` for what is none, and all the rest of it."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf if isinstance(leaf, _ARRAYS) else None for leaf in leaves]
    rest = (
        None if array is not None else leaf for leaf, array in zip(leaves, arrays, strict=True)
    )
    return (structure, tuple(rest)), arrays


def join(fixed: Any, arrays: Sequence[Any]) -> Any:
    """The opposite of `split`."""
    structure, rest = fixed
    leaves = [b if a is None else a for a, b in zip(arrays, rest, strict=True)]
    return jax.tree.unflatten(structure, leaves)


@jax.tree_util.register_static
class Fixed:
    """Something that is no array, among what a program takes or returns."""

    def __init__(self, value: Hashable):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)
