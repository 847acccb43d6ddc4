"""Pairs of an input and an output: arrays, or trees of them, with the examples along the first
axes.
"""

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._given import is_real, show
from .loop import Pair

Classes = tuple[int | None, int | None]


def read_pair(name: str, given: Any) -> Pair:
    """An input, or `None`, and an output, for equally many examples."""
    if not (isinstance(given, tuple | list) and len(given) == 2):
        hint = " (All of the data at once is a tuple, no list.)" if _is_array(given) else ""
        raise TypeError(f"{name} must be a pair (input, output), got {describe(given)}.{hint}")
    pair = _read(f"{name}: the input", given[0]), _read(f"{name}: the output", given[1])
    lengths = {x.shape[0] if x.ndim else 0 for x in jax.tree.leaves(pair)}
    if not jax.tree.leaves(pair[1]) or len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"{name} must be a pair (input, output) with equally many examples along the first "
            f"axes of all arrays, or (None, output), got {_count_all(pair)}."
        )
    return pair


def count(pair: Pair) -> int:
    """How many examples there are."""
    return jax.tree.leaves(pair)[0].shape[0]


def describe(given: Any) -> str:
    """What was given in the place of a pair."""
    if not isinstance(given, tuple | list):
        return show(given)
    kind = lambda x: f"an array {x.shape}" if _is_array(x) else show(x)
    return f"a {type(given).__name__} of {len(given)}: {', '.join(map(kind, given[:4]))}"


def _read(name: str, side: Any) -> Any:
    """A tree of arrays. Lists of numbers, and of lists of them, are one array."""
    numbers = isinstance(side, list | tuple) and all(map(np.isscalar, jax.tree.leaves(side)))
    read = lambda path, x: _to_array(name + jax.tree_util.keystr(path), x)
    return _to_array(name, side) if numbers else jax.tree_util.tree_map_with_path(read, side)


def _to_array(name: str, given: Any) -> Any:
    if isinstance(given, jax.Array) and not jnp.iscomplexobj(given):
        return given
    with contextlib.suppress(ValueError, RuntimeError):  # Of rows of different lengths, say.
        array = np.asanyarray(given)  # With a mask, if it has one, so that it is refused.
        if is_real(array) or array.dtype == bool:
            return array
    raise TypeError(f"{name} must be an array of real numbers, got {show(given)}.")


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray)


def _count_all(pair: Pair) -> str:
    """How many examples each array has."""

    def say(side: str, path: tuple, x: Any) -> str:
        examples = f"{x.shape[0]} examples" if x.ndim else "no axis of examples"
        return f"{side}{jax.tree_util.keystr(path)} with {examples}, shape {x.shape}"

    sides = zip(("input", "output"), pair, strict=True)
    leaves = [(side, jax.tree_util.tree_leaves_with_path(x)) for side, x in sides]
    named = [say(side, *leaf) for side, found in leaves for leaf in found]
    missing = [f"no {side}" for side, found in leaves if not found]
    return "; ".join(named + missing)


def count_classes(name: str, pair: Pair, classes: Classes, *, complete: bool = True) -> Classes:
    """How many classes the integer labels among the input and the output have, if they are not
    given: one more than the largest one.
    """
    if classes[1] and not any(map(_is_labels, pair)) and _is_array(pair[1]) and pair[1].ndim == 1:
        raise ValueError(
            f"{name} has an output of {pair[1].dtype}, and classes= is for integer labels: write "
            "labels.astype(int), or leave classes= out."
        )
    count = lambda x, number: _count(name, x, number, complete) if _is_labels(x) else None
    return count(pair[0], classes[0]), count(pair[1], classes[1])


def _count(name: str, labels: Any, number: int | None, complete: bool) -> int:
    least, most = int(labels.min()), int(labels.max())
    if number is None and not complete:
        raise ValueError(f"{name} gives integer labels: say how many classes there are, classes=.")
    number = most + 1 if number is None else number
    if least < 0 or most >= number:
        raise ValueError(f"{name} has labels from {least} to {most}, with classes={number}.")
    return number


def _is_labels(side: Any) -> bool:
    """Whether an input or output as a whole is an array of integers with one axis."""
    return _is_array(side) and side.ndim == 1 and jnp.issubdtype(side.dtype, jnp.integer)
