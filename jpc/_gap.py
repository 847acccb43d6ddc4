from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from ._functional import Activities, call_at, of_params
from ._inference import Equilibrium, Inferred
from ._metrics import tree_norm
from ._options import Options, Params, Posed, Setup, setup


def equilibrium_gap(
    params: Params,
    activities: Activities,
    output: ArrayLike,
    input: ArrayLike | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    r"""How far activities are from the equilibrium of inference: a certificate for any method.
    The equilibrium is that of [`jpc.Equilibrium`][] (exact for a linear network), started from
    the activities.

    **Arguments:**

    - `params`, `activities`, `options`: as in [`jpc.pc_energy_fn`][].
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary.

    - `energy`, `equilibrium_energy`: $F$ and $F^*$; `excess`: $F - F^*$.
    - `gradient_error`: the error of the learning gradient, relative to the gradient at
      equilibrium, all layers together. `layer_gradient_errors`: the same for each layer. Where
      the gradient at equilibrium is zero they are 0, or infinite if it is not zero here.
    - `result`: whether the equilibrium itself was found, for each example.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    gap = jpc.equilibrium_gap(params, activities, y, x)
    left, wrong = gap["excess"], gap["gradient_error"]  # In energy, and in what is learned.
    ```
    """
    return call_at(_gap, setup(params, options), params, activities, output, input)


def tolerance(nodes: PyTree) -> float:
    """Of an equilibrium that others are compared with."""
    return float(jnp.finfo(jnp.result_type(*jax.tree.leaves(nodes))).eps) ** 0.5


def _gap(setup, params, posed):
    exact = Equilibrium(rtol=tolerance(posed.nodes), throw=False)
    return compare(setup, params, posed, exact(setup.energy, *posed))


def compare(setup: Setup, params: Params, posed: Posed, inferred: Inferred) -> dict[str, Any]:
    """What is here, and what there is at equilibrium."""
    lesson = inferred.lesson or (setup.energy, inferred.nodes)
    gradient = lambda energy, nodes: eqx.filter_grad(of_params(setup, posed, energy))(
        params, nodes, posed.clamps
    )
    (here, _), (there, _) = gradient(setup.energy, posed.nodes), gradient(*lesson)
    apart = eqx.apply_updates(here, jax.tree.map(jnp.negative, there))
    energies = setup.energy(*posed), setup.energy(posed.layers, inferred.nodes, posed.clamps)
    return dict(
        energy=energies[0],
        equilibrium_energy=energies[1],
        excess=energies[0] - energies[1],
        gradient_error=_relative(apart, there),
        layer_gradient_errors=jnp.stack(
            [_relative(a, b) for a, b in zip(apart, there, strict=True)]
        ),
        result=inferred.result,
    )


def _relative(apart: PyTree, there: PyTree) -> Array:
    """Of nothing it is 0 if there is no difference, and infinite if there is one."""
    error, size = tree_norm(apart), tree_norm(there)
    of_nothing = jnp.where(error > 0, jnp.inf, 0.0)
    return jnp.where(size > 0, error / jnp.where(size > 0, size, 1), of_nothing)
