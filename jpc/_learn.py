from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import PyTree

from ._checks import REMEDY, all_finite
from ._given import show
from ._types import Clamps, Given, Nodes


class Learned(eqx.Module):
    """What [`jpc.learn`][] returns.

    **Attributes:** the new `params`, the new `opt_state`, and the `grads` that led there.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    learned = jpc.learn(energy, model, nodes, clamps, optim=optim, opt_state=opt_state)
    model, opt_state = learned.params, learned.opt_state
    ```
    """

    params: PyTree
    opt_state: PyTree
    grads: PyTree

    def __repr__(self) -> str:
        arrays = jax.tree.leaves(eqx.filter(self.params, eqx.is_inexact_array))
        count = sum(array.size for array in arrays)
        return f"Learned({count:,} parameters; params, opt_state, grads)"


def learn(
    energy: Given[Callable],
    params: PyTree,
    nodes: Given[Nodes],
    clamps: Given[Clamps],
    *,
    optim: Given[optax.GradientTransformation],
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

    Parameters that are no longer finite are an error. (Inside `jax.jit` their numbers are not
    known yet, so nothing is checked.)

    **Returns:**

    A [`jpc.Learned`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    inferred = jpc.Descent(0.1, 20)(energy, model, nodes, clamps)
    learned = jpc.learn(energy, model, inferred.nodes, clamps, optim=optim, opt_state=opt_state)
    ```
    """
    if isinstance(energy, type) or not callable(energy):
        raise TypeError(f"energy must be something like jpc.PCEnergy(), got {show(energy)}.")
    check_state("params", optim, opt_state, params)
    check_learns("params", params)
    learned = take_step(energy, params, nodes, clamps, optim, opt_state)
    _check_finite(learned)
    return learned


def take_step(energy, params, nodes, clamps, optim, opt_state) -> Learned:
    """The same, of what was checked."""
    grads = eqx.filter_grad(energy)(params, nodes, clamps)
    arrays = eqx.filter(params, eqx.is_inexact_array)
    updates, opt_state = update(optim, grads, opt_state, arrays)
    return Learned(eqx.apply_updates(params, updates), opt_state, grads)


def _check_finite(learned: Learned) -> None:
    """Of what is known: a program that is traced has checks of its own, or none."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(learned)):
        return
    if all_finite(learned.params):
        return
    if all_finite(learned.grads):
        raise RuntimeError(
            "optim made of gradients that are finite an update that is not (NaN or infinity): "
            "check its learning rate."
        )
    raise RuntimeError(f"The gradient of params is not finite (NaN or infinity). {REMEDY}")


def update(optim: Any, grads: PyTree, opt_state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    """Those of an optimiser that needs nothing but gradients."""
    try:
        return optim.update(grads, opt_state, params)
    except TypeError as error:
        if "required keyword-only" not in str(error):
            raise
        raise TypeError(
            "optim is one that needs the value of what it descends too, such as a line search "
            "(optax.lbfgs): take one that needs gradients only, such as optax.adam(1e-3)."
        ) from error


def check_learns(name: str, params: PyTree) -> None:
    if not jax.tree.leaves(eqx.filter(params, eqx.is_inexact_array)):
        raise ValueError(f"{name} has no parameters: its layers hold no arrays to learn.")


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
