"""Bidirectional predictive coding as the paper's implementation calls it. There is no mathematics
here: that is in [`jpc.BPCEnergy`][].
"""

from collections.abc import Sequence
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._bpc_options import (
    NAMES,
    Both,
    BPCOptions,
    Models,
    Read,
    call,
    check_input,
    given,
    read_options,
)
from ._checks import checked_jit, raise_if_not_finite
from ._clamp import Masked, states
from ._functional import Activities, activity_grad, move, with_prediction
from ._generic import make_step
from ._given import check_flags, check_type
from ._inference import AbstractInference, Descent, Record
from ._layer import feedforward_batch
from ._learn import check_state, learn
from ._metrics import accuracy, mse_loss
from ._options import Posed, data, optional_data, refuse_masks
from ._types import Given, Layers, Scalar

# Without momentum 20 steps are too few for the input's error to reach all layers of a deep
# network, and those that it does not reach do not learn from it.
_INFERENCE = Descent(optax.sgd(0.1, momentum=0.9), 20)


def bpc_energy_fn(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    record_layers: Given[bool] = False,
    **options: Unpack[BPCOptions],
) -> Array:
    r"""The energy of bidirectional predictive coding,

    $$F = \frac{1}{N} \sum_{i=1}^N \sum_{\ell=1}^L
          \frac{a_f}{2} \lVert z_{\ell,i} - f_\ell(z_{\ell-1,i}) \rVert^2
          + \frac{a_b}{2} \lVert z_{\ell-1,i} - g_\ell(z_{\ell,i}) \rVert^2,
          \qquad z_0 = x, \ z_L = y.$$

    **Arguments:**

    - `top_down_model`: the layers $f_1 \dots f_L$, from the input to the output.
    - `bottom_up_model`: the layers $g_1 \dots g_L$ in the same order, so that the last one takes
        the output: a network from the output to the input, reversed.
    - `activities`: $z_1 \dots z_L$, with $z_0$ first if there is no `x`, or only a part of it.
        The last one, the prediction of the output, does not matter.
    - `y`: a batch of outputs (say images), which the bottom-up model starts from.
    - `x`: a batch of inputs (say labels), if the input is given.
    - `record_layers`: whether to return the energy of each layer.
    - `options`: see [`jpc.BPCOptions`][].

    **Returns:**

    A scalar; or an array of 2 L energies, those of the layers 1 to L of the top-down model, then
    those of the bottom-up model.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    value = jpc.bpc_energy_fn(model, back[::-1], activities, y, x=x)
    ```
    """
    models = (top_down_model, bottom_up_model)
    check_flags(record_layers=record_layers)
    return call(_energy, models, activities, y, x, options, record_layers)


def _energy(both: Both, models: Models, posed: Posed, record_layers: bool) -> Array:
    energy = both.setup.energy
    if not record_layers:
        return energy(*posed)
    return jnp.stack(jax.tree.leaves(energy.layerwise(*posed)))


def compute_bpc_activity_grad(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[BPCOptions],
) -> tuple[Scalar, list[Array]]:
    """The gradient of the energy of bidirectional predictive coding in the activities: that of
    the batch's mean energy, or with `reduction="sum"` of each example's own.

    **Arguments:** those of [`jpc.bpc_energy_fn`][].

    **Returns:**

    The energy, and gradients like the activities. The gradient in the last activity, the
    prediction of the output, is zero.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    value, moves = jpc.compute_bpc_activity_grad(model, back[::-1], activities, y, x=x)
    ```
    """
    models = (top_down_model, bottom_up_model)
    return call(_activity_grad, models, activities, y, x, options)


def _activity_grad(both: Both, models: Models, posed: Posed) -> tuple[Scalar, list[Array]]:
    del models
    return activity_grad(both.setup, posed)


def compute_bpc_param_grads(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[BPCOptions],
) -> tuple[PyTree, PyTree]:
    """The gradient of the energy of bidirectional predictive coding in the parameters.

    **Arguments:** those of [`jpc.bpc_energy_fn`][].

    **Returns:**

    Gradients like the two models, with `None` for what is not an array.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    forwards, backwards = jpc.compute_bpc_param_grads(model, back[::-1], activities, y, x=x)
    ```
    """
    models = (top_down_model, bottom_up_model)
    return call(_param_grads, models, activities, y, x, options)


def _param_grads(both: Both, models: Models, posed: Posed) -> tuple[PyTree, PyTree]:
    return eqx.filter_grad(both.energy)(models, posed.nodes, posed.clamps)


def update_bpc_activities(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    **options: Unpack[BPCOptions],
) -> dict[str, Any]:
    """One step of inference of bidirectional predictive coding with an Optax optimiser.

    **Arguments:**

    - `top_down_model`, `bottom_up_model`, `activities`, `options`: as in
        [`jpc.bpc_energy_fn`][].
    - `optim`, `opt_state`: an Optax optimiser and its state, `optim.init(activities)` at first.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary with the `energy` and its `grads` before the step, the new `activities`, `optim`
    and the new `opt_state`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    sgd, bottom_up = optax.sgd(0.1), back[::-1]
    state = sgd.init(activities)
    result = jpc.update_bpc_activities(model, bottom_up, activities, sgd, state, y, x)
    ```
    """
    models = (top_down_model, bottom_up_model)
    args = (activities, output, input, options, optim, opt_state)
    return call(_update_activities, models, *args) | dict(optim=optim)


def _update_activities(both: Both, models: Models, posed: Posed, optim, opt_state) -> dict:
    del models
    down: Any = posed.layers[0]
    return move(both.setup, posed, down, optim, opt_state)


def update_bpc_params(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    top_down_optim: Given[optax.GradientTransformation],
    bottom_up_optim: Given[optax.GradientTransformation],
    top_down_opt_state: PyTree,
    bottom_up_opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    **options: Unpack[BPCOptions],
) -> dict[str, Any]:
    """Learning of bidirectional predictive coding: one step of an Optax optimiser for each of the
    two models.

    **Arguments:**

    - `top_down_model`, `bottom_up_model`, `activities`, `options`: as in
        [`jpc.bpc_energy_fn`][]; the activities are those at the end of inference.
    - `top_down_optim`, `top_down_opt_state`: an Optax optimiser and its state, at first
        `optim.init(eqx.filter(top_down_model, eqx.is_array))`.
    - `bottom_up_optim`, `bottom_up_opt_state`: the same for the bottom-up model.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary of pairs, the top-down model's first: the new `models`, the `grads`, the `optims`
    and the new `opt_states`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    models = (model, back[::-1])
    states = [optim.init(eqx.filter(m, eqx.is_array)) for m in models]
    result = jpc.update_bpc_params(*models, activities, optim, optim, *states, y, x)
    ```
    """
    models, optims = (top_down_model, bottom_up_model), (top_down_optim, bottom_up_optim)
    args = (activities, output, input, options, optims, (top_down_opt_state, bottom_up_opt_state))
    return call(_update_params, models, *args) | dict(optims=optims)


def _update_params(both: Both, models: Models, posed: Posed, optims, opt_states) -> dict:
    optim = _pair(models, optims, opt_states)
    nodes, clamps = posed.nodes, posed.clamps
    learned = learn(both.energy, models, nodes, clamps, optim=optim, opt_state=opt_states)
    named = {
        f"After learning, layer {i} of {name}": layer
        for name, model in zip(NAMES, learned.params, strict=True)
        for i, layer in enumerate(model, start=1)
    }
    models = raise_if_not_finite(named, learned.params)
    return dict(models=models, grads=learned.grads, opt_states=learned.opt_state)


def _pair(models: Models, optims: Any, opt_states: Any) -> optax.GradientTransformation:
    """One optimiser of a pair, made of two."""
    for name, model, optim, state in zip(NAMES, models, optims, opt_states, strict=True):
        check_state(name, optim, state, model)

    def init(params: Any) -> Any:
        return tuple(optim.init(model) for optim, model in zip(optims, params, strict=True))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        each = zip(optims, updates, state, params, strict=True)
        new = [optim.update(*args) for optim, *args in each]
        return tuple(zip(*new, strict=True))

    return optax.GradientTransformation(init, update)


def make_bpc_step(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    optims: Given[Sequence[optax.GradientTransformation]],
    opt_states: Given[Sequence[PyTree]],
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    *,
    inference: Given[AbstractInference | None] = None,
    record: Given[Record | None] = None,
    key: Given[PRNGKeyArray | None] = None,
    **options: Unpack[BPCOptions],
) -> dict[str, Any]:
    r"""One step of training with bidirectional predictive coding: inference from the bottom-up
    sweep, then both models learn where it ended.

    It is what [`jpc.fit`][] takes, with `dict(top_down_model=..., bottom_up_model=...,
    optims=..., opt_states=...)` as its state and `(labels, images)` as the data.

    **Arguments:**

    - `top_down_model`: the layers $f_1 \dots f_L$, from the input to the output.
    - `bottom_up_model`: the layers $g_1 \dots g_L$ in the same order, so that the last one takes
        the output: a network from the output to the input, reversed.
    - `optims`, `opt_states`: an Optax optimiser and a state for each of the two, at first
        `optim.init(eqx.filter(model, eqx.is_array))`.
    - `output`: a batch of what $z_L$ is clamped to (say images).
    - `input`: a batch of what $z_0$ is clamped to (say labels); without it $z_0$ is inferred too.
        Where only some examples have one, say so with `input_mask`.
    - `inference`: any method, by default 20 steps of 0.1 with a momentum of 0.9 for each example,
        `jpc.Descent(optax.sgd(0.1, momentum=0.9), 20)`.
    - `record`: what to keep of inference, see [`jpc.Record`][].
    - `key`: goes to a method of inference that needs one.
    - `options`: see [`jpc.BPCOptions`][]; `reduction` is up to the method of inference.

    **Returns:**

    A dictionary.

    - `top_down_model`, `bottom_up_model`, `optims`, `opt_states`: for the next step; `grads`: a
      pair, what led there.
    - `losses`: a pair of half squared errors before the step: of the output that the top-down
      sweep predicts, from the input (or from the bottom-up guess where it is not given); and of
      the bottom-up guess of the input (or of what was inferred where it is not given).
    - `activities`: at the end of inference, as in [`jpc.bpc_energy_fn`][].
    - `energy`, `energies`: at the end of inference: the mean over the batch, and that of each of
      its terms, a pair of lists.
    - `result`, `stats`, `trajectory`: see [`jpc.Inferred`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    optims, models = (optim, optim), (model, back[::-1])
    states = [optim.init(eqx.filter(m, eqx.is_array)) for m in models]
    result = jpc.make_bpc_step(*models, optims, states, y, x)
    ```
    """
    pairs = [isinstance(x, Sequence) and len(x) == 2 for x in (optims, opt_states)]
    if not all(pairs) or isinstance(optims, optax.GradientTransformation):
        raise ValueError("optims and opt_states are lists of two, the top-down model's first.")
    if "reduction" in options:
        raise ValueError(
            "A step has no reduction: its method of inference says whether the examples of a "
            "batch are apart, such as inference=jpc.GradientFlow(reduction='mean')."
        )
    inference = _INFERENCE if inference is None else inference
    check_type("inference", inference, AbstractInference, "jpc.Descent(0.1, 20)")
    models = (top_down_model, bottom_up_model)
    problem = (models, data("output", output), optional_data("input", input))
    how = (inference, record, tuple(optims), tuple(opt_states), key)
    answer = _step(read_options(models, options), *problem, *how)
    kind: Any = type(opt_states)
    return answer | dict(optims=optims, opt_states=kind(answer["opt_states"]))


@checked_jit
def _step(read: Read, models, output, input, inference, record, optims, opt_states, key):
    both, (output, input) = Both.of(read, output), given(read, output, input, [])
    (down, up), optim = both(models), _pair(models, optims, opt_states)
    how: Any = dict(energy=read.setup.energy, inference=inference, pose=both.pose, transform=both)
    answer = make_step(models, optim, opt_states, output, input, record=record, key=key, **how)
    clamps = [input, *[None] * (len(down) - 1), output]
    guess, end = feedforward_batch(up[::-1], output)[-1], states(answer["nodes"], clamps)[0]
    made = feedforward_batch(down, _complete(input, guess))[-1]
    kept = ("grads", "energy", "energies", "result", "stats", "trajectory")
    return {name: answer[name] for name in kept} | dict(
        top_down_model=answer["params"][0],
        bottom_up_model=answer["params"][1],
        opt_states=answer["opt_state"],
        losses=(mse_loss(made, output), mse_loss(guess, end)),
        activities=with_prediction(down, answer["nodes"], clamps),
    )


def _complete(input: Any, guess: Array) -> Array:
    if isinstance(input, Masked):
        return input.fill(guess)
    return guess if input is None else input


def evaluate_bpc(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    output: Given[ArrayLike],
    input: Given[ArrayLike],
    *,
    optims: Any = None,
    opt_states: PyTree = None,
    key: PRNGKeyArray | None = None,
    **options: Unpack[BPCOptions],
) -> dict[str, Scalar]:
    """How good both directions are, for the state of [`jpc.make_bpc_step`][]: what [`jpc.fit`][]
    can `evaluate` a test set with.

    **Arguments:** those of [`jpc.make_bpc_step`][]; the optimisers and the key do not matter.

    **Returns:**

    A dictionary: the accuracy in percent, `acc`, of the input (a label) that the bottom-up sweep
    finds from the output, and the half squared error, `loss`, of the output that the top-down
    sweep makes from the input.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    found = jpc.evaluate_bpc(model, back[::-1], output=y, input=x)
    ```
    """
    del optims, opt_states, key
    refuse_masks("jpc.evaluate_bpc", options)
    models = (top_down_model, bottom_up_model)
    read = read_options(models, options)
    return _evaluate(read, models, data("output", output), data("input", input))


@checked_jit
def _evaluate(read: Read, models: Models, output: Array, input: Array) -> dict[str, Scalar]:
    both, (output, input) = Both.of(read, output), given(read, output, input, [])
    (down, up), shapes = both.layers(models)
    check_input(input, shapes[0])
    guess = feedforward_batch(up[::-1], output)[-1]
    made = feedforward_batch(down, input)[-1]
    return dict(acc=accuracy(input, guess), loss=mse_loss(made, output))
