from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from ._given import show
from ._types import Clamps, Nodes


class Learned(eqx.Module):
    """**Attributes:** the new `params`, the new `opt_state`, and the `grads` that led there."""

    params: PyTree
    opt_state: PyTree
    grads: PyTree


def learn(
    energy: Callable,
    params: PyTree,
    nodes: Nodes,
    clamps: Clamps,
    *,
    optim: optax.GradientTransformation,
    opt_state: PyTree,
) -> Learned:
    r"""One step of descent of an energy in its parameters,

    $$\theta \leftarrow \theta - \mathrm{optim}(\nabla_\theta F(\theta, z)).$$

    **Arguments:**

    - `energy`: an [`jpc.AbstractEnergy`][], or any function like one.
    - `params`: what is learned.
    - `nodes`, `clamps`: the states, at equilibrium or wherever inference ended.
    - `optim`: an Optax optimiser.
    - `opt_state`: its state, `optim.init(eqx.filter(params, eqx.is_inexact_array))` at first.
    """
    grads = eqx.filter_grad(energy)(params, nodes, clamps)
    arrays = eqx.filter(params, eqx.is_inexact_array)
    updates, opt_state = optim.update(grads, opt_state, arrays)
    return Learned(eqx.apply_updates(params, updates), opt_state, grads)


def fits(optim: Any, opt_state: PyTree, params: PyTree) -> bool:
    """Whether a state is one that an optimiser has for these parameters."""
    if not isinstance(optim, optax.GradientTransformation):
        raise TypeError(f"optim must be something like optax.adam(1e-3), got {show(optim)}.")
    try:
        expected = jax.eval_shape(optim.init, eqx.filter(params, eqx.is_inexact_array))
    except (TypeError, ValueError):  # An optimiser of trees of another structure.
        return False
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    same = jax.tree.structure(expected) == jax.tree.structure(opt_state)
    return same and shapes(expected) == shapes(opt_state)


def check_state(name: str, optim: Any, opt_state: PyTree, params: PyTree) -> None:
    if not fits(optim, opt_state, params):
        init = name if name == "activities" else f"eqx.filter({name}, eqx.is_inexact_array)"
        raise ValueError(
            f"opt_state is not a state of this optimiser for {name}: make one with "
            f"optim.init({init}), and keep the one that each update returns."
        )
