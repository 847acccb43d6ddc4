import functools as ft
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ._clamp import Masked, check_mask, check_state, spell
from ._energy import AbstractEnergy, Node, take_apart
from ._given import check_type
from ._types import Clamps, Given, Name, Nodes


def pose(
    energy: Given[AbstractEnergy],
    params: PyTree,
    given: Given[Mapping[Any, Array]],
    *,
    masks: Given[Mapping[Any, Array] | None] = None,
    start: Given[Mapping[Any, Array] | None] = None,
) -> tuple[Nodes, Clamps]:
    """Says which states of a network are given, and starts the others from what predicts them.

    **Arguments:**

    - `energy`: a [`jpc.AbstractNetworkEnergy`][], with priors and penalties added or not.
    - `params`: its parameters.
    - `given`: a batch of what each state is clamped to, by name; those of a chain are whole
        numbers, 0 for the input.
    - `masks`: for some of these the units that are given, as booleans of the same shape. The
        others are inferred.
    - `start`: where to start other states; needed for those that nothing predicts, and for one
        state of each cycle.

    **Returns:**

    `(nodes, clamps)`: dictionaries by name, or lists for a chain.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    nodes, clamps = jpc.pose(energy, model, {0: x, 3: y})  # By the number of the state.
    graph, layers = jpc.GraphEnergy({"h": ["x"]}), {"h": model[0]}
    free, given = jpc.pose(graph, layers, {"x": x})  # By its name.
    ```
    """
    check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
    network = take_apart(energy).network(params)
    masks, start = {} if masks is None else masks, {} if start is None else start
    _check_names(network, given, masks, start)
    z: dict[Name, Array] = {name: given[name] for name in given if name not in masks}
    while waiting := [name for name in network if name not in z]:
        ready = [n for n in waiting if n in start or all(p in z for p in network[n].parents)]
        if not ready:
            raise ValueError(
                f"Nothing says where to start {waiting[0]!r}: it is in a cycle, so give "
                f"start={{{waiting[0]!r}: ...}} or that of a state that predicts it."
            )
        name = ready[0]
        z[name] = start[name] if name in start else _start(name, network[name], z, given)
        if name in masks:
            z[name] = jnp.where(masks[name], given[name], z[name])
    _check_shapes(network, z)
    return _lay_out(network, z, given, masks)


def _check_names(network: Mapping, given: Any, masks: Any, start: Any) -> None:
    for kind, named in (("given", given), ("start", start), ("masks", masks)):
        check_type(kind, named, Mapping, "{name: array}, by name")
        if unknown := [name for name in named if name not in network]:
            raise ValueError(
                f"{kind} has {unknown[0]!r}, which is no state of the network: those are "
                f"{', '.join(map(repr, network))}."
            )
    if extra := [name for name in masks if name not in given]:
        raise ValueError(f"There is a mask of {extra[0]!r}, which is not given.")
    if twice := [name for name in start if name in given and name not in masks]:
        raise ValueError(f"{twice[0]!r} is given, so that it has no start.")
    for name, state in [*given.items(), *start.items()]:
        check_state(repr(name), state)
    for name, mask in masks.items():
        check_mask(f"The mask of {name!r}", mask, given[name].shape)
    for name, node in network.items():
        if unknown := [parent for parent in node.parents if parent not in network]:
            raise ValueError(f"{name!r} is predicted by {unknown[0]!r}, which is not a node.")


def _check_shapes(network: Mapping, z: dict) -> None:
    sizes = {name: len(state) for name, state in z.items()}
    if len({*sizes.values()}) > 1:
        listed = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
        raise ValueError(f"All states must have the same batch size, but {listed}.")
    for name, node in network.items():
        if node.fn is not None:
            shape = jax.eval_shape(ft.partial(_predict, name, node), z).shape
            if jnp.shape(z[name]) != shape:
                raise ValueError(
                    f"The state {name!r} has the shape {jnp.shape(z[name])}, but its prediction "
                    f"has the shape {shape}."
                )


def _predict(name: Name, node: Node, z: dict) -> Any:
    inputs, size = {parent: z[parent] for parent in node.parents}, len(next(iter(z.values())))
    predict = ft.partial(node.predict, name=f"What predicts {spell(name)}")
    return jax.vmap(predict, axis_size=size)(inputs)


def _start(name: Name, node: Node, z: dict, given: Mapping) -> Array:
    if node.fn is None and name in given:
        return jnp.zeros_like(given[name])
    if node.fn is None or not z:
        raise ValueError(
            f"Nothing predicts {name!r}: give it, or say where to start it with "
            f"start={{{name!r}: ...}}."
        )
    # As in a feedforward pass: rounded as the predictions it is compared with.
    return jax.lax.optimization_barrier(_predict(name, node, z))


def _lay_out(network: Mapping, z: dict, given: Mapping, masks: Mapping) -> tuple[Any, Any]:
    nodes, clamps = {}, {}
    for name in network:
        whole = name in given and name not in masks
        nodes[name] = None if whole else z[name]
        clamps[name] = given.get(name)
        if name in masks:
            value = jnp.where(masks[name], given[name], jnp.zeros_like(z[name]))
            clamps[name] = Masked(value, jnp.asarray(masks[name]))
    if all(isinstance(name, int) for name in network):
        ordered = sorted(network)
        return [nodes[i] for i in ordered], [clamps[i] for i in ordered]
    return nodes, clamps
