r"""Temporal predictive coding.

A sequence is a chain of predictions in time. The layers $f_1 \dots f_L$ predict the state of a
step from that of the step before, and from it what is observed,

$$z_{t-1} \to z_t \to \dots \to x_t.$$

Filtering infers one step after the other and leaves those before as they are; smoothing infers
all of them at once.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._checks import checked_jit, raise_if_not_finite
from ._clamp import Masked, clamp, states
from ._energy import (
    AbstractEnergy,
    AbstractNetworkEnergy,
    Node,
    PCEnergy,
    check_of_states,
    squared_error,
)
from ._energy.network import Network
from ._given import check_count, check_key, check_model, check_type
from ._inference import AbstractInference, Inferred, check_infers
from ._inference.base import answered
from ._layer import feedforward_batch, parameterise
from ._learn import check_state, learn
from ._numbers import floats_to_arrays
from ._options import data, layer_shapes
from ._pose import pose
from ._types import Clamps, Given, Layers, Loss, Nodes, Scalar

Observations = Given[ArrayLike | Masked]


def filter_sequence(
    energy: Given[AbstractEnergy],
    inference: Given[AbstractInference],
    params: Given[Layers],
    start: Given[ArrayLike],
    observations: Observations,
    *,
    key: Given[PRNGKeyArray | None] = None,
) -> Array:
    r"""Estimates the states of sequences step by step, each from the estimate before it and from
    what is observed,

    $$\hat z_t = \mathrm{infer}_z \, \frac{p_1}{2} \lVert z - f_1(\hat z_{t-1}) \rVert^2
      + \frac{p_2}{2} \lVert x_t - f_2(z) \rVert^2.$$

    Inference starts from the prediction $f_1(\hat z_{t-1})$.

    **Arguments:**

    - `energy`: that of one step, a chain whose input is the last estimate and whose output is the
        observation: [`jpc.PCEnergy`][], with precisions or another loss, or one like it.
    - `inference`: how a step is inferred.
    - `params`: the layers, callables on one example: the first predicts a state from the one
        before, the others what is observed.
    - `start`: the estimates before the first step, `[batch, ...]`.
    - `observations`: `[time, batch, ...]`. Those of which a part is missing are a
        [`jpc.Masked`][] of two such arrays.
    - `key`: randomness, for methods that need it.

    **Returns:**

    The estimates of the states $z_1 \dots z_T$, `[time, batch, ...]`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = [eqx.nn.Linear(3, 3, key=jr.key(5)), eqx.nn.Linear(3, 2, key=jr.key(6))]
    seen, start = jr.normal(jr.key(7), (6, 5, 2)), jnp.zeros((5, 3))  # Time, examples, units.
    states = jpc.filter_sequence(energy, jpc.Descent(0.1, 5), layers, start, seen)
    ```
    """
    energy, inference = _check_methods(energy, inference, key, states=True)
    seen = _observed("observations", observations)
    return _filter(energy, inference, params, data("start", start), seen, key)[1].nodes[1]


def smooth_sequence(
    energy: Given[PCEnergy],
    inference: Given[AbstractInference],
    params: Given[Layers],
    start: Given[ArrayLike],
    observations: Observations,
    *,
    key: Given[PRNGKeyArray | None] = None,
) -> Array:
    """Estimates all states of sequences at once, each from what is observed before and after it.

    **Arguments:** those of [`jpc.filter_sequence`][], with a [`jpc.PCEnergy`][]. What is descended
    is the [`jpc.SequenceEnergy`][] made of it. [`jpc.Equilibrium`][] needs `dense` to be at least
    the number of observations of a sequence, steps times units.

    **Returns:**

    The estimates of the states $z_1 \\dots z_T$, `[time, batch, ...]`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = [eqx.nn.Linear(3, 3, key=jr.key(5)), eqx.nn.Linear(3, 2, key=jr.key(6))]
    seen, start = jr.normal(jr.key(7), (6, 5, 2)), jnp.zeros((5, 3))  # Time, examples, units.
    states = jpc.smooth_sequence(energy, jpc.Descent(0.1, 5), layers, start, seen)
    ```
    """
    check_type("energy", energy, PCEnergy, "jpc.PCEnergy()")
    energy, inference = _check_methods(energy, inference, key, states=True)
    seen = _observed("observations", observations)
    return _smooth(energy, inference, params, data("start", start), seen, key)


def make_tpc_step(
    params: Given[Layers],
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Observations,
    input: Observations | None = None,
    *,
    energy: Given[AbstractEnergy],
    inference: Given[AbstractInference],
    carry: Given[ArrayLike | None] = None,
    key: Given[PRNGKeyArray | None] = None,
) -> dict[str, Any]:
    r"""One step of training with temporal predictive coding: filters a batch of sequences, see
    [`jpc.filter_sequence`][], then learns from all of their time steps,

    $$\theta \leftarrow \theta - \mathrm{optim}\Big(\nabla_\theta \frac{1}{T} \sum_{t=1}^T
      F(\theta, \hat z_{t-1}, \hat z_t, x_t)\Big).$$

    It is what [`jpc.fit`][] takes. For separate sequences its state is `dict(params=...,
    optim=..., opt_state=...)`, and the input says where each of them starts. For streams that are
    cut into pieces the state has a `carry` too: the estimates at the end of a batch, from which
    the next one goes on. Give [`jpc.fit`][] `shuffle=False`, and a batch that has the next piece
    of each stream.

    **Arguments:**

    - `params`, `energy`, `inference`, `key`: as in [`jpc.filter_sequence`][].
    - `optim`, `opt_state`: an Optax optimiser and its state, at first
        `optim.init(eqx.filter(params, eqx.is_inexact_array))`.
    - `output`: a batch of sequences, `[batch, time, ...]`, or a [`jpc.Masked`][] of two.
    - `input`: the estimates before the first step, `[batch, ...]`. With a `carry` it may be left
        out, or be a [`jpc.Masked`][]: where its mask is true, a stream begins anew.
    - `carry`: the estimates at the end of the batch before this one, `[batch, ...]`.

    **Returns:**

    A dictionary.

    - `params`, `optim`, `opt_state`, `carry`: for the next step; `grads`: what led there.
    - `estimates`: of the states, `[batch, time, ...]`.
    - `energy`, `energies`: before learning, the mean over the batch and over time, and that of
      each of the energy's terms.
    - `result`, `stats`: see [`jpc.Inferred`][], `[batch, time]`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = [eqx.nn.Linear(3, 3, key=jr.key(5)), eqx.nn.Linear(3, 2, key=jr.key(6))]
    seen, start = jr.normal(jr.key(7), (5, 6, 2)), jnp.zeros((5, 3))  # Examples, time, units.
    named = dict(energy=energy, inference=jpc.Descent(0.1, 5))
    result = jpc.make_tpc_step(layers, optim, optim.init(layers), seen, start, **named)
    ```
    """
    energy, inference = _check_methods(energy, inference, key)
    check_state("params", optim, opt_state, params)
    seen, start = _observed("output", output), _begin(input, carry)
    state = (params, optim, opt_state)
    return _step(energy, inference, state, start, seen, key) | dict(optim=optim)


class SequenceEnergy(AbstractNetworkEnergy):
    r"""The energy of a whole sequence: the sum of those of its steps, in the coordinates of their
    errors,

    $$F = \sum_{t=1}^T \Big( \sum_{\ell=1}^{L-1} \frac{p_\ell}{2} \lVert e_{\ell t} \rVert^2
          + p_L \, \mathrm{loss}(x_t, f_L(z_{L-1,t})) \Big), \qquad
      z_{1t} = f_1(z_{1,t-1}) + e_{1t}, \quad z_{\ell t} = f_\ell(z_{\ell-1,t}) + e_{\ell t}.$$

    Node 0 is the state before the first step. The nodes $1 \dots L-1$ are the errors of all steps,
    `[time, ...]`, and node $L$ is what is observed.

    **Arguments:**

    - `energy`: that of one step, a [`jpc.PCEnergy`][].
    - `length`: the number of steps.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    whole = jpc.SequenceEnergy(jpc.PCEnergy(), length=3)
    ```
    """

    energy: Given[PCEnergy]
    length: Given[int] = eqx.field(static=True)

    def __check_init__(self):
        check_type("energy", self.energy, PCEnergy, "jpc.PCEnergy()")
        check_count("length", self.length)

    def network(self, params: Layers) -> Network:
        chain, last = self.energy.network(params), len(params)
        errors = {i: Node(precision=self._repeat(chain[i].precision)) for i in range(1, last)}
        loss = chain[last].loss
        loss = loss if loss is squared_error else _EachStep(loss)
        precision = self._repeat(chain[last].precision)
        seen = Node(_Observe(tuple(params)), tuple(range(last)), loss, precision)
        return {0: chain[0], **errors, last: seen}

    def states(self, params: Layers, nodes: Nodes, clamps: Clamps) -> list[Array]:
        r"""The states $z_1 \dots z_{L-1}$ of one example, `[time, ...]`."""
        start, *errors = states(nodes, clamps)[:-1]
        return _unroll(params, start, errors)

    def _repeat(self, precision: Any) -> Any:
        """One for each unit is one for each unit at each step."""
        shape = jnp.shape(precision)
        return jnp.broadcast_to(precision, (self.length, *shape)) if shape else precision


class _EachStep(eqx.Module):
    """A loss, summed over the steps of a sequence."""

    loss: Loss

    def __call__(self, target: Array, prediction: Array) -> Scalar:
        return jnp.sum(jax.vmap(self.loss)(target, prediction))


class _Observe(eqx.Module):
    """Predicts all observations from the state before the first step and the errors."""

    layers: Layers

    def __call__(self, start: Array, *errors: Array) -> Array:
        return jax.vmap(self.layers[-1])(_unroll(self.layers, start, errors)[-1])


def _unroll(layers: Layers, start: Array, errors: Sequence[Array]) -> list[Array]:
    """The states of a sequence whose errors are known, like the errors."""

    def step(before, now):
        reached = []
        for layer, error in zip(layers[:-1], now, strict=True):
            before = layer(before) + error
            reached.append(before)
        return reached[0], reached

    return jax.lax.scan(step, start, list(errors))[1]


class _Fixed(eqx.Module):
    """What is no array, on its way out of a loop."""

    value: Any = eqx.field(static=True)


@checked_jit
def _filter(energy, inference, params, start, observations, key) -> tuple[Clamps, Inferred]:
    """What was given and inferred, everything with the time first."""
    named = {"start": start, "observations": observations}
    start, observations = raise_if_not_finite(named, (start, observations))
    _check_shapes(params, start, jax.tree.map(lambda x: x[0], observations))
    times = len(jax.tree.leaves(observations)[0])
    keys = None if key is None else jr.split(key, times)

    def step(before, now):
        seen, key = now
        nodes, clamps = _pose_step(params, before, seen)
        inferred = answered(inference(energy, params, nodes, clamps, key=key))
        arrays, rest = eqx.partition((clamps, inferred), eqx.is_array)
        return inferred.nodes[1], (arrays, _Fixed(rest))

    _, (arrays, rest) = jax.lax.scan(step, start, (observations, keys))
    return eqx.combine(arrays, rest.value)


def _pose_step(params: Layers, before: Array, seen: Any) -> tuple[Nodes, Clamps]:
    predicted = feedforward_batch(params, before)
    if isinstance(seen, Masked):
        return clamp(predicted, seen.value, before, mask=seen.mask)
    return clamp(predicted[:-1], seen, before)


@checked_jit
def _smooth(energy, inference, params, start, observations, key) -> Array:
    named = {"start": start, "observations": observations}
    start, observations = raise_if_not_finite(named, (start, observations))
    shapes = _check_shapes(params, start, jax.tree.map(lambda x: x[0], observations))
    seen = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), observations)
    masks = {len(params): seen.mask} if isinstance(seen, Masked) else {}
    seen = seen.value if isinstance(seen, Masked) else seen
    times = seen.shape[1]
    nothing = lambda z: jnp.zeros((len(start), times, *z.shape), z.dtype)
    errors = {i: nothing(z) for i, z in enumerate(shapes[:-1], start=1)}
    whole = SequenceEnergy(energy, times)
    given = {0: start, len(params): seen}
    nodes, clamps = pose(whole, params, given, masks=masks, start=errors)
    nodes = answered(inference(whole, params, nodes, clamps, key=key)).nodes
    states_of = lambda nodes, clamps: whole.states(params, nodes, clamps)
    return jax.vmap(states_of, out_axes=1)(nodes, clamps)[0]


@checked_jit
def _step(energy, inference, state, start, output, key) -> dict[str, Any]:
    params, optim, opt_state = state
    time_first = lambda tree: jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)
    clamps, inferred = _filter(energy, inference, params, start, time_first(output), key)
    flat = lambda tree: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)
    lesson, nodes = _lesson(energy, inferred)
    steps = (params, flat(nodes), flat(clamps))
    learned = learn(lesson, *steps, optim=optim, opt_state=opt_state)
    after = raise_if_not_finite({"After learning, params": learned.params}, learned.params)
    ended = (params, flat(inferred.nodes), flat(clamps))
    return dict(
        params=after,
        opt_state=learned.opt_state,
        carry=inferred.nodes[1][-1],
        grads=learned.grads,
        estimates=time_first(inferred.nodes[1]),
        energy=energy(*ended),
        energies=energy.layerwise(*ended),
        result=time_first(inferred.result),
        stats=time_first(inferred.stats),
    )


def _lesson(energy: AbstractEnergy, inferred: Inferred) -> tuple[AbstractEnergy, Nodes]:
    """What there is to learn from all times. The energy is the same at each of them."""
    if inferred.lesson is None:
        return energy, inferred.nodes
    lesson, nodes = inferred.lesson
    return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, lesson), nodes


def _check_methods(
    energy: Any, inference: Any, key: Any, *, states: bool = False
) -> tuple[Any, Any]:
    """`states`: whether it is these that are asked for, rather than what there is to learn."""
    check_key(key)
    check_type("energy", energy, AbstractEnergy, "jpc.PCEnergy()")
    check_type("inference", inference, AbstractInference, "jpc.Equilibrium()")
    check_of_states(energy)
    if states:
        check_infers(inference)
    return floats_to_arrays((energy, inference))


def _observed(name: str, given: Any) -> Any:
    """Arrays of numbers. What is not given may be anything, also NaN."""
    masked = isinstance(given, Masked)
    value = jnp.asarray(given.value) if masked else data(name, given)
    if value.ndim < 2:
        raise ValueError(f"{name} needs axes for the time and the batch, got {value.shape}.")
    return Masked(jnp.where(given.mask, value, 0), jnp.asarray(given.mask)) if masked else value


def _begin(input: Any, carry: Any) -> Array:
    """Where sequences start: at the input, or where the last ones ended."""
    if carry is None:
        if input is None or isinstance(input, Masked):
            raise ValueError(
                "Nothing says where the sequences start: give the estimates before their first "
                "step as the input, such as zeros of shape [batch, ...], or a carry."
            )
        return data("input", input)
    carry = data("carry", carry)
    if input is None:
        return carry
    if not isinstance(input, Masked):
        raise ValueError(
            "The input and the carry both say where the sequences start: give one of them, or "
            "as the input a jpc.Masked(start, mask), whose mask is true where a stream begins."
        )
    if not carry.shape == jnp.shape(input.value) == jnp.shape(input.mask):
        raise ValueError(
            f"The carry has shape {carry.shape}, so that the value and the mask of the input must "
            f"have it too, got {jnp.shape(input.value)} and {jnp.shape(input.mask)}."
        )
    return input.fill(carry)


def _check_shapes(params: Given[Layers], start: Array, seen: Any) -> list[jax.ShapeDtypeStruct]:
    """That the layers make a state of a state, and of it what is observed; the shapes of what
    they make, for one example.
    """
    check_model("params", params)
    if len(params) < 2:
        raise ValueError(
            f"Temporal predictive coding needs at least two layers, got {len(params)}: one that "
            "predicts a state from the one before, and one that predicts what is observed."
        )
    one = jax.ShapeDtypeStruct(start.shape[1:], start.dtype)
    shapes = layer_shapes("params", parameterise(params, fan_ins=[1] * len(params)), one)[1:]
    observed = jax.tree.leaves(seen)[0].shape
    if shapes[0].shape != one.shape:
        raise ValueError(
            f"The first layer predicts a state from the one before, but makes {shapes[0].shape} "
            f"of the shape {one.shape} of the start, for one example."
        )
    if observed != (len(start), *shapes[-1].shape):
        raise ValueError(
            f"The layers predict observations of shape {shapes[-1].shape} for one example, of "
            f"which there are {len(start)} by the start, but those of one step have shape "
            f"{observed}."
        )
    return shapes
