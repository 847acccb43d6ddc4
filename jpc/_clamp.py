from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ._types import Clamps, Name, Nodes


class Masked(eqx.Module):
    """A state that is given in part: a clamp in a place where there is a node too.

    **Arguments:**

    - `value`: an array of the state's shape. What it holds where the mask is false does not
        matter.
    - `mask`: booleans of the same shape, true for the units that are given. The node has the
        others.
    """

    value: Array
    mask: Bool[Array, "..."]

    def fill(self, free: Array) -> Array:
        """The given units, and the others from `free`."""
        return jnp.where(self.mask, self.value, free)


def states(nodes: PyTree, clamps: PyTree) -> Any:
    """All states of a network: what is inferred and what is given, in one list, or one
    dictionary, like `nodes`. (`eqx.combine` does the same where no clamp is a [`jpc.Masked`][].)
    """
    return _each(_fill, nodes, clamps)


def inferred(nodes: PyTree, clamps: PyTree) -> Any:
    """The nodes, with zeros in the units that a [`jpc.Masked`][] clamp gives."""
    hide = lambda z, c: jnp.where(c.mask, 0, z) if isinstance(c, Masked) else z
    return _each(hide, nodes, clamps)


def _fill(free: PyTree, given: PyTree) -> PyTree:
    return given.fill(free) if isinstance(given, Masked) else eqx.combine(free, given)


def _each(fn: Any, nodes: PyTree, clamps: PyTree) -> Any:
    if isinstance(nodes, dict):
        return {name: fn(nodes.get(name), clamps.get(name)) for name in {**nodes, **clamps}}
    return [fn(z, c) for z, c in zip(nodes, clamps, strict=True)]


def clamp(
    activities: Sequence[Array],
    output: Array | None = None,
    input: Array | None = None,
    *,
    mask: Array | None = None,
    input_mask: Array | None = None,
) -> tuple[Nodes, Clamps]:
    r"""Says which states of a chain $z_0 \dots z_L$ are inferred and which are given.

    **Arguments:**

    - `activities`: the free states, in chain order.
    - `output`: what $z_L$ is clamped to; `None` if it is the last of the activities.
    - `input`: what $z_0$ is clamped to; `None` if it is the first of the activities.
    - `mask`: the units of the output that are given, as booleans of its shape. The others are
        inferred, from the last of the activities on.
    - `input_mask`: the same for the input and the first of the activities.

    **Returns:**

    `(nodes, clamps)`, two lists over the whole chain, each with `None` where the other one holds
    a value; both hold one where a state is given in part, the clamp as a [`jpc.Masked`][]. To
    clamp a state in the middle, put it into the second list and `None` into the first.
    """
    nodes: list = list(activities)
    clamps: list = [None for _ in nodes]
    for given, some, name, end in ((input, input_mask, "input", 0), (output, mask, "output", -1)):
        if some is not None:
            clamps[end] = _masked(name, given, some, nodes[end] if nodes else None)
            nodes[end] = clamps[end].fill(nodes[end])
        elif given is not None:
            at = len(nodes) if end else 0
            nodes.insert(at, None)
            clamps.insert(at, given)
    return nodes, clamps


def _masked(name: str, given: Array | None, mask: Array, free: Array | None) -> Masked:
    if given is None:
        raise ValueError(f"A mask says which units of the {name} are given: give the {name} too.")
    shape = jnp.shape(given)
    if jnp.shape(mask) != shape or not jnp.issubdtype(jnp.result_type(mask), jnp.bool_):
        got = f"{jnp.result_type(mask)} of shape {jnp.shape(mask)}"
        raise ValueError(
            f"The mask of the {name} must be booleans of its shape {shape}, got {got}."
        )
    if free is None or jnp.shape(free) != shape:
        raise ValueError(
            f"With a mask the {name}, of shape {shape}, is also among the activities, for the "
            f"units that are inferred: {'there are none' if free is None else jnp.shape(free)}."
        )
    # What is not given must not count, even if it is NaN.
    return Masked(jnp.where(mask, given, jnp.zeros_like(free)), jnp.asarray(mask))


def entry(tree: PyTree, name: Name) -> Any:
    """Of a list or a dictionary, which may leave out what is `None`."""
    if isinstance(tree, dict):
        return tree.get(name)
    return tree[name] if isinstance(name, int) and name < len(tree) else None


def like(nodes: PyTree, entries: dict[Name, Any]) -> Any:
    """A list or a dictionary like `nodes`, with these entries and `None` for the others."""
    if isinstance(nodes, dict):
        return {name: entries.get(name) for name in {**nodes, **entries}}
    return [entries.get(i) for i in range(len(nodes))]
