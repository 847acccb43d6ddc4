"""The step that all others are made of: pose, infer, learn."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from ._checks import checked_jit, raise_if, raise_if_not_finite
from ._energy import AbstractEnergy
from ._given import check_call, check_callable, check_numbers, check_type, show
from ._inference import RESULTS, AbstractInference, Inferred, Record
from ._inference.base import answered, unfit_clamps
from ._layer import traceable
from ._learn import check_state, learn
from ._numbers import floats_to_arrays
from ._types import Clamps, Given, Nodes

Pose = Callable[[PyTree, Any, Any, Any], tuple[Nodes, Clamps]]


def as_they_are(params: PyTree) -> PyTree:
    return params


def make_step(
    params: PyTree,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: PyTree,
    input: PyTree = None,
    *,
    energy: Given[AbstractEnergy],
    inference: Given[AbstractInference],
    pose: Given[Pose],
    transform: Given[Callable[[PyTree], PyTree]] = as_they_are,
    record: Given[Record | None] = None,
    key: Given[PRNGKeyArray | None] = None,
) -> dict[str, Any]:
    r"""One step of training with any energy, any parameters and any method of inference,

    $$z^* = \mathrm{infer}_z \, F(\theta, z), \qquad
      \theta \leftarrow \theta - \mathrm{optim}(\nabla_\theta F(\theta, z^*)).$$

    It is what [`jpc.fit`][] takes, with `dict(params=..., optim=..., opt_state=...)` as its state
    and `metrics=("energy",)`.

    **Arguments:**

    - `params`: what is learned, any PyTree.
    - `optim`, `opt_state`: an Optax optimiser and its state, at first
        `optim.init(eqx.filter(params, eqx.is_inexact_array))`.
    - `output`, `input`: a batch, arrays or trees of them, as `pose` wants it.
    - `energy`: what is descended.
    - `inference`: how it is descended in the nodes.
    - `pose`: a function `(params, output, input, key) -> (nodes, clamps)`, which says what is
        given and where the rest starts. [`jpc.pose`][] and [`jpc.clamp`][] make these. Define it
        once: a new function compiles a new program.
    - `transform`: a function that turns the parameters into what the energy takes, such as
        layers with scalings, or normalised weights. By default the energy takes them as they are.
    - `record`: what to keep of inference, see [`jpc.Record`][].
    - `key`: randomness for `pose` and for methods that need it.

    **Returns:**

    A dictionary.

    - `params`, `optim`, `opt_state`: for the next step; `grads`: what led there.
    - `energy`, `energies`: at the end of inference, before learning: the mean over the batch,
      and that of each of the energy's terms.
    - `nodes`, `result`, `stats`, `trajectory`: see [`jpc.Inferred`][]; `converged`: the share of
      examples that have; `inference`: the method to go on with, if that is another one.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    import functools


    def pose(params, output, input, key):
        return jpc.clamp(jpc.feedforward_batch(params, input)[:-1], output, input)

    named = dict(energy=energy, inference=jpc.Descent(0.1, 20), pose=pose)
    result = jpc.make_step(model, optim, opt_state, y, x, **named)

    step = functools.partial(jpc.make_step, **named)  # For whole epochs.
    state = dict(params=model, optim=optim, opt_state=opt_state)
    options = dict(epochs=1, batch_size=5, key=jr.key(0), metrics=("energy",), progress=False)
    fitted = jpc.fit(step, state, (x, y), **options)
    ```
    """
    check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
    check_type("inference", inference, AbstractInference, "jpc.Equilibrium()")
    check_callable("pose", pose, "lambda params, output, input, key: jpc.pose(...)")
    check_callable("transform", transform, "lambda params: layers")
    check_call("make_step", "pose", pose, "params", "output", "input", "key")
    check_call("make_step", "transform", transform, "params")
    for name, side in (("output", output), ("input", input)):
        check_numbers(name, side)
    check_state("params", optim, opt_state, params)
    energy, inference = floats_to_arrays((energy, inference))
    state, batch = (params, optim, opt_state), (output, input)
    new = _step(energy, inference, pose, transform, state, batch, record, key)
    return new | dict(optim=optim)


@checked_jit
def _step(energy, inference, pose, transform, state, batch, record, key):
    output, input = raise_if_not_finite({"output": batch[0], "input": batch[1]}, batch)
    params, optim, opt_state = state
    with traceable("pose"):
        posed = pose(params, output, input, key)
    if not (isinstance(posed, tuple | list) and len(posed) == 2):
        raise TypeError(f"pose must return a pair (nodes, clamps), got {show(posed)}.")
    nodes, clamps = posed
    if wrong := unfit_clamps(energy, transform(params), clamps):
        clamps = raise_if(wrong, clamps)
    how: Any = dict(transform=transform, record=record, key=key)
    inferred, lesson, states = advance(energy, inference, params, nodes, clamps, **how)
    learned = learn(lesson, params, states, clamps, optim=optim, opt_state=opt_state)
    after = raise_if_not_finite({"After learning, params": learned.params}, learned.params)
    ended = (transform(params), inferred.nodes, clamps)
    return dict(
        params=after,
        opt_state=learned.opt_state,
        grads=learned.grads,
        energy=energy(*ended),
        energies=energy.layerwise(*ended),
        nodes=inferred.nodes,
        result=inferred.result,
        stats=inferred.stats,
        trajectory=inferred.trajectory,
        inference=inferred.method,
        converged=converged(inferred),
    )


def converged(inferred: Inferred) -> Array:
    """The share of examples that have. [`jpc.Equilibrium`][] knows without looking at energies."""
    known = inferred.stats.get("converged", inferred.result == RESULTS.successful)
    return jnp.mean(known, dtype=jnp.result_type(*jax.tree.leaves(inferred.nodes)))


def advance(
    energy: AbstractEnergy,
    inference: AbstractInference,
    params: PyTree,
    nodes: Nodes,
    clamps: Clamps,
    *,
    transform: Callable[[PyTree], PyTree],
    record: Given[Record | None],
    key: Given[PRNGKeyArray | None],
) -> tuple[Inferred, Callable, Nodes]:
    """Inference, and what there is to learn from it: an energy, as a function of the parameters,
    and the states at which to learn.
    """
    made = transform(params)
    inferred = answered(inference(energy, made, nodes, clamps, record=record, key=key))
    lesson, states = inferred.lesson or (energy, inferred.nodes)
    of_params = lambda params, nodes, clamps: lesson(transform(params), nodes, clamps)
    return inferred, of_params, states
