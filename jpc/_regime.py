"""Where a learning rule stands between backpropagation and equilibrium."""

from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._checks import checked_jit
from ._energy import AbstractEnergy, Unfolded, take_apart, total
from ._functional import call, make_layers
from ._gap import tolerance
from ._generic import as_they_are
from ._given import check_callable, check_type
from ._inference import (
    RESULTS,
    AbstractInference,
    Backprop,
    Equilibrium,
    Forward,
    Inferred,
    Nudged,
)
from ._inference.base import answered, examples
from ._inference.chords import derivatives, multiply
from ._metrics import tree_norm
from ._numbers import floats_to_arrays
from ._options import FlowOptions, Params, setup
from ._solve import eigenvalues
from ._types import Clamps, Given, Nodes

DENSE = 64  # Units that are predicted and given: beyond, eigenvalues are estimated.
_PROBES, _POWERS, _AT_ONCE = 16, 10, 4


def regime(
    params: Params,
    output: ArrayLike,
    input: ArrayLike | None = None,
    *,
    key: Given[PRNGKeyArray | None] = None,
    **options: Unpack[FlowOptions],
) -> dict[str, Any]:
    r"""Says where a learning rule stands between backpropagation and the equilibrium of
    inference, measured on a batch. To first order, the output learns at equilibrium from
    $\lambda = S^{-1} g$ rather than from its error $g$, with

    $$S = I + H A, \qquad A = \sum_\ell J_\ell P_\ell^{-1} J_\ell^T, \qquad
      H = \nabla^2 \mathrm{loss}(\hat y), \qquad J_\ell = \partial \hat y / \partial z_\ell,$$

    so that a rule is far from backpropagation if $S$ is far from 1 *and* inference got to its
    end.

    **Arguments:**

    - `params`, `output`, `input`: as in [`jpc.pc_energy_fn`][].
    - `key`: goes to a method of inference that needs one.
    - `options`: see [`jpc.FlowOptions`][]; `inference` is the rule.

    **Returns:**

    A dictionary.

    - `mean_eigenvalue`, `largest_eigenvalue`, `smallest_eigenvalue`: of $S$ at the feedforward
      pass, for each example, with the output's precision that the rule has. With more than 64
      units of output the mean is an estimate from 16 random probes, the largest one from 10
      power iterations (a lower bound), and the smallest one is NaN.
    - `mean_sensitivity`: $\mathrm{tr}(A) / n$ for each example, with $n$ units of output.
    - `cosine`, `angle`: between the learning gradient of the rule and that of backpropagation,
      penalties aside; the angle in degrees. `layer_cosines`, `layer_angles`: of each layer.
    - `relaxed`: $(F_0 - F) / (F_0 - F^*)$, how much of the energy that inference could remove it
      has removed: from 0 at the feedforward pass to 1 at equilibrium. For a nudge this is about
      the energy of the nudge.
    - `successful`: the share of the examples whose `result` is successful: those are certified.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    found = jpc.regime((model, None), y, x, inference=jpc.Backprop())
    angle = found["angle"]  # To backpropagation: 0 degrees.
    ```
    """
    problem = setup(params, options, max_t1=20.0)
    return call(_regime, problem, params, None, output, input, key)


def _regime(setup, params, posed, key):
    how: Any = dict(transform=make_layers(setup, posed), key=key, split=by_layer)
    found = _measure(setup.energy, setup.inference, params, posed.nodes, posed.clamps, **how)
    return found | {name: jnp.stack(found[name]) for name in ("layer_cosines", "layer_angles")}


def by_layer(grads: Params) -> list:
    """Of a model and its skip connections, if there are any."""
    return list(zip(*filter(None, grads), strict=True))


def measure_regime(
    energy: Given[AbstractEnergy],
    params: PyTree,
    nodes: Nodes,
    clamps: Clamps,
    *,
    inference: Given[AbstractInference],
    transform: Given[Callable[[PyTree], PyTree]] = as_they_are,
    key: Given[PRNGKeyArray | None] = None,
) -> dict[str, Any]:
    """Does the same as [`jpc.regime`][] for any network of predictions.

    **Arguments:**

    - `energy`, `params`, `nodes`, `clamps`: of the problem, as [`jpc.pose`][] poses it.
    - `inference`: the rule.
    - `transform`, `key`: as in [`jpc.make_step`][].

    **Returns:**

    The dictionary of [`jpc.regime`][]. Layers are the entries of `params`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    found = jpc.measure_regime(energy, model, nodes, clamps, inference=jpc.Descent(0.1, 20))
    angle = found["angle"]  # To backpropagation, in degrees.
    ```
    """
    check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
    check_type("inference", inference, AbstractInference, "jpc.Equilibrium()")
    check_callable("transform", transform, "lambda params: layers")
    energy, inference = floats_to_arrays((energy, inference))
    return _jitted(energy, inference, params, nodes, clamps, transform, key)


@checked_jit
def _jitted(energy, inference, params, nodes, clamps, transform, key):
    how: Any = dict(transform=transform, key=key, split=_entries)
    return _measure(energy, inference, params, nodes, clamps, **how)


def _entries(grads: PyTree) -> PyTree:
    return grads


def _measure(energy, inference, params, nodes, clamps, *, transform, key, split) -> dict[str, Any]:
    made = transform(params)
    inferred = answered(inference(energy, made, nodes, clamps, key=key))
    problem = (energy, made, nodes, clamps)
    found = compare(energy, inferred, params, nodes, clamps, transform=transform, split=split)
    return found | dict(relaxed=_relaxed(inference, inferred, problem))


def compare(
    energy: AbstractEnergy,
    inferred: Inferred,
    params: PyTree,
    nodes: Nodes,
    clamps: Clamps,
    *,
    transform: Callable[[PyTree], PyTree],
    split: Callable[[PyTree], PyTree],
) -> dict[str, Any]:
    """What there is to say of an answer without knowing the equilibrium."""
    made = transform(params)
    forward = Forward.of("The regime", (energy, made, nodes, clamps), None)
    backwards = Backprop()(energy, made, nodes, clamps)

    def gradient(answer: Inferred) -> PyTree:
        lesson, states = answer.lesson or (energy, answer.nodes)
        fine = take_apart(forward.inner).penalise
        learned = lambda p: lesson(transform(p), states, clamps) - total(fine(transform(p)))
        return split(eqx.filter_grad(learned)(params))

    ours, theirs = gradient(inferred), gradient(backwards)
    parts, structure = _open(ours)
    cosines = [_cosine(a, b) for a, b in zip(parts, _open(theirs)[0], strict=True)]
    layers = jax.tree.unflatten(structure, cosines)
    factor = inferred.stats.get("precision", jnp.ones(len(jax.tree.leaves(forward.v)[0])))
    spectrum = jax.lax.map(
        lambda x: _spectrum(forward.unfolded, *x),
        (forward.v, forward.given, factor),
        batch_size=_AT_ONCE,
    )
    cosine = _cosine(ours, theirs)
    return spectrum._asdict() | dict(
        cosine=cosine,
        angle=_degrees(cosine),
        layer_cosines=layers,
        layer_angles=jax.tree.map(_degrees, layers),
        successful=jnp.mean(inferred.result == RESULTS.successful, dtype=cosine.dtype),
    )


def _open(tree: PyTree) -> tuple[list, Any]:
    """The entries of a list, a dictionary or whatever it is, and its structure."""
    return jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)


def _cosine(one: PyTree, other: PyTree) -> Array:
    """One of what does not learn at all is 0."""
    product = total(
        [jnp.vdot(a, b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True)]
    )
    size = tree_norm(one) * tree_norm(other)
    return product / jnp.where(size > 0, size, 1)


def _degrees(cosine: Array) -> Array:
    return jnp.rad2deg(jnp.arccos(jnp.clip(cosine, -1, 1)))


class _Spectrum(NamedTuple):
    mean_eigenvalue: Array
    largest_eigenvalue: Array
    smallest_eigenvalue: Array
    mean_sensitivity: Array


def _spectrum(unfolded: Unfolded, v: dict, given: dict, factor: Array) -> _Spectrum:
    """Of one example."""
    predicted, _ = unfolded.predict(v, given)
    size = sum(y.size for y in predicted.values())
    if size > DENSE:
        return _estimate(unfolded, v, given, factor)
    A, H = derivatives(unfolded, v, given)
    each = 1 + eigenvalues(factor * H, A)
    return _Spectrum(jnp.mean(each), each[-1], each[0], jnp.trace(A) / size)


def _estimate(unfolded: Unfolded, v: dict, given: dict, factor: Array) -> _Spectrum:
    """The same by products with vectors."""
    y, unravel = ravel_pytree(unfolded.predict(v, given)[0])
    loss = lambda y: factor * unfolded.loss(unravel(y), given)
    curve = lambda x: jax.jvp(jax.grad(loss), (y,), (x,))[1]
    times_A = multiply(unfolded, v, given)
    probes = jr.rademacher(jr.key(0), (_PROBES, y.size), y.dtype)
    moved = jax.lax.map(times_A, probes)
    traces = jnp.mean(jnp.sum(probes * jax.vmap(curve)(moved), axis=1))
    sensitivity = jnp.mean(jnp.sum(probes * moved, axis=1)) / y.size

    def power(_, x):
        new = curve(times_A(x))
        return new / jnp.maximum(jnp.linalg.norm(new), 1e-30)

    x = jax.lax.fori_loop(0, _POWERS, power, probes[0] / jnp.sqrt(y.size))
    largest = 1 + jnp.linalg.norm(curve(times_A(x)))
    return _Spectrum(1 + traces / y.size, largest, jnp.full_like(largest, jnp.nan), sensitivity)


def _relaxed(inference: AbstractInference, inferred: Inferred, problem: tuple) -> Array:
    if "relaxed" in inferred.stats:
        return jnp.mean(inferred.stats["relaxed"])
    energy, params, nodes, clamps = problem
    ended = inferred.nodes
    if isinstance(inference, Nudged):
        energy, nodes, clamps = inference.problem(*problem)
        more = len(clamps) - len(ended)
        ended = ended if isinstance(ended, dict) else [*ended, *[None] * more]
    first = Forward.of("The regime", (energy, params, nodes, clamps), None).nodes
    exact = Equilibrium(rtol=tolerance(first), throw=False)
    last = exact(energy, params, first, clamps).nodes
    return relaxed_share(
        *(jnp.mean(examples(energy, params, z, clamps)) for z in (first, ended, last))
    )


def relaxed_share(first: Any, ended: Any, last: Any) -> Array:
    """Of energies."""
    return (first - ended) / jnp.where(first == last, 1, first - last)
