from collections.abc import Callable

import equinox as eqx
import optax
from jaxtyping import PyTree

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
