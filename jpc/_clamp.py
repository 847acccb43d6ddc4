from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ._given import is_real, refuse_half, show
from ._types import Clamps, Given, Name, Nodes


class Masked(eqx.Module):
    """A state that is given in part: a clamp in a place where there is a node too.

    **Arguments:**

    - `value`: an array of the state's shape. What it holds where the mask is false does not
        matter.
    - `mask`: booleans of the same shape, true for the units that are given. The node has the
        others.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    mask = jnp.array([True, False])  # The second unit of the output is not known.
    free, given = jpc.clamp(activities, y, x, mask=jnp.broadcast_to(mask, y.shape))
    inferred = jpc.Descent(0.1, 20)(energy, model, free, given)
    ```
    """

    value: Given[Array]
    mask: Given[Bool[Array, "..."]]

    def __check_init__(self):
        if not (_is_array(self.value) and is_real(self.value)):
            raise TypeError(f"value must be an array of real numbers, got {show(self.value)}.")
        if not (_is_array(self.mask) and self.mask.dtype == bool):
            raise TypeError(f"mask must be an array of booleans, got {show(self.mask)}.")
        if self.value.shape != self.mask.shape:
            raise ValueError(
                f"mask has shape {self.mask.shape}, but value {self.value.shape}: give one "
                "boolean for each of its units."
            )

    def fill(self, free: Given[Array]) -> Array:
        """The given units, and the others from `free`."""
        if not eqx.is_array_like(free) or np.shape(free) not in ((), self.value.shape):
            got = f"shape {np.shape(free)}" if eqx.is_array_like(free) else show(free)
            raise ValueError(f"free must be of the value's shape {self.value.shape}, got {got}.")
        return jnp.where(self.mask, self.value, free)


def states(nodes: PyTree, clamps: PyTree) -> Any:
    """All states of a network: what is inferred and what is given, in one list, or one
    dictionary, like `nodes`. (`eqx.combine` does the same where no clamp is a [`jpc.Masked`][].)

    **Example**, after [these lines](index.md#the-examples):

    ```python
    z = jpc.states(nodes, clamps)  # z_0 to z_3: the input, two hidden states, the output.
    ```
    """
    check_lists(nodes, clamps)
    return _each(_fill, nodes, clamps)


def inferred(nodes: PyTree, clamps: PyTree) -> Any:
    """The nodes, with zeros in the units that a [`jpc.Masked`][] clamp gives."""
    hide = lambda z, c: jnp.where(c.mask, 0, z) if isinstance(c, Masked) else z
    return _each(hide, nodes, clamps)


def _fill(free: PyTree, given: PyTree) -> PyTree:
    if _is_array(free) and _is_array(given):
        raise ValueError(
            f"A state, of shape {free.shape}, is in both nodes and clamps: put None into one of "
            "them, or clamp it in part with jpc.Masked."
        )
    return given.fill(free) if isinstance(given, Masked) else eqx.combine(free, given)


def _each(fn: Any, nodes: PyTree, clamps: PyTree) -> Any:
    if isinstance(nodes, dict):
        return {name: fn(nodes.get(name), clamps.get(name)) for name in {**nodes, **clamps}}
    return [fn(z, c) for z, c in zip(nodes, clamps, strict=True)]


def clamp(
    activities: Given[Sequence[Array]],
    output: Given[Array | None] = None,
    input: Given[Array | None] = None,
    *,
    mask: Given[Array | None] = None,
    input_mask: Given[Array | None] = None,
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

    **Example**, after [these lines](index.md#the-examples):

    ```python
    nodes, clamps = jpc.clamp(activities[:-1], output=y, input=x)
    free, given = jpc.clamp([x, *activities[:-1]], output=y)  # Without an input z_0 is inferred.
    ```
    """
    if not isinstance(activities, Sequence) or isinstance(activities, str):
        raise TypeError(f"activities must be a list of arrays, got {show(activities)}.")
    given = {"input": input} | {f"activities[{i}]": z for i, z in enumerate(activities)}
    for name, state in (given | {"output": output}).items():
        if state is not None or name.startswith("activities"):
            check_state(name, state)
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
    check_batch(nodes, clamps)
    return nodes, clamps


def _masked(name: str, given: Array | None, mask: Any, free: Array | None) -> Masked:
    if given is None:
        raise ValueError(f"A mask says which units of the {name} are given: give the {name} too.")
    shape = jnp.shape(given)
    check_mask(f"The mask of the {name}", mask, shape)
    if free is None or jnp.shape(free) != shape:
        raise ValueError(
            f"With a mask the {name}, of shape {shape}, is also among the activities, for the "
            f"units that are inferred: {'there are none' if free is None else jnp.shape(free)}."
        )
    # What is not given must not count, even if it is NaN.
    return Masked(jnp.where(mask, given, jnp.zeros_like(free)), jnp.asarray(mask))


def check_mask(name: str, mask: Any, shape: tuple[int, ...]) -> None:
    if not (_is_array(mask) and mask.dtype == bool and mask.shape == shape):
        got = f"{mask.dtype} of shape {mask.shape}" if _is_array(mask) else show(mask)
        raise ValueError(f"{name} must be booleans of its shape {shape}, got {got}.")


def entries(tree: PyTree) -> Any:
    """Those of a list or a dictionary, with their names."""
    return tree.items() if isinstance(tree, dict) else enumerate(tree)


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


def spell(name: Any) -> str:
    """A state in an error message."""
    return f"z_{name}" if isinstance(name, int) else repr(name)


def check_lists(nodes: Any, clamps: Any) -> None:
    """That both are lists over the same chain, or both dictionaries."""
    for name, tree in (("nodes", nodes), ("clamps", clamps)):
        if not isinstance(tree, list | tuple | dict):
            raise TypeError(
                f"{name} must be a list over the states, or a dictionary by name, as jpc.clamp "
                f"and jpc.pose make them: got {show(tree)}."
            )
    if isinstance(nodes, dict) != isinstance(clamps, dict):
        kinds = f"nodes a {type(nodes).__name__}, clamps a {type(clamps).__name__}"
        raise TypeError(f"nodes and clamps must be two lists, or two dictionaries: got {kinds}.")
    if not isinstance(nodes, dict) and len(nodes) != len(clamps):
        raise ValueError(
            f"nodes has {len(nodes)} entries and clamps {len(clamps)}: both have one for each "
            "state, None where the other one holds it, so that they are as long."
        )


def check_problem(nodes: Any, clamps: Any) -> None:
    """That nodes are batches of floats, clamps of numbers, and all of as many examples."""
    check_lists(nodes, clamps)
    for kind, tree in (("nodes", nodes), ("clamps", clamps)):
        for name, state in entries(tree):
            for leaf in jax.tree.leaves(state):
                check_state(f"{kind}: {spell(name)}", leaf, floats=kind == "nodes")
    check_batch(nodes, clamps)


def check_state(name: str, state: Any, *, floats: bool = False) -> None:
    """That it is a batch of numbers, or of floats."""
    boolean = not floats and _is_array(state) and state.dtype == bool
    if not (_is_array(state) and (is_real(state) or boolean)):
        raise TypeError(f"{name} must be an array of real numbers, got {show(state)}.")
    if floats and not jnp.issubdtype(state.dtype, jnp.floating):
        raise TypeError(
            f"{name} is inferred, so that it must be floats, got {state.dtype}: write "
            "z.astype(float)."
        )
    refuse_half(name, state)
    if state.ndim == 0 or state.shape[0] == 0:
        raise ValueError(f"{name} needs a batch of examples, got shape {state.shape}.")


def check_batch(nodes: Any, clamps: Any) -> None:
    """That all arrays have as many examples, along their first axes."""
    shapes = [jnp.shape(leaf)[:1] for leaf in jax.tree.leaves((nodes, clamps))]
    if not shapes:
        raise ValueError("There are no states: all of nodes and clamps are empty, or None.")
    if len({*shapes}) > 1:
        listed = ", ".join(str(shape[0]) if shape else "none" for shape in shapes)
        raise ValueError(
            "All states must have the same batch size, but those of nodes, then of clamps, have "
            f"{listed} examples."
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)
