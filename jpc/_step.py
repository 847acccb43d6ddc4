from collections.abc import Callable, Sequence
from typing import Any, Unpack

import diffrax as dfx
import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._energy import AmortisedEnergy
from ._functional import (
    HEUN,
    PID,
    amortised_chain,
    call,
    choose_inference,
    choose_record,
    descend,
    of_params,
    with_prediction,
    with_predictions,
)
from ._inference import AbstractInference, Record
from ._init import init_activities_from_normal, init_activities_with_amort
from ._layer import feedforward
from ._metrics import compute_accuracy, compute_activity_norms, compute_param_norms, mse_loss
from ._options import Options, Posed, Setup, data
from ._types import Layers, Number


def make_pc_step(
    model: Layers,
    optim: optax.GradientTransformation,
    opt_state: PyTree,
    output: ArrayLike,
    input: ArrayLike | None = None,
    *,
    skip_model: Sequence[Callable | None] | None = None,
    ode_solver: dfx.AbstractSolver = HEUN,
    max_t1: Number = 20,
    dt: Number | None = None,
    stepsize_controller: dfx.AbstractStepSizeController = PID,
    inference: AbstractInference | None = None,
    key: PRNGKeyArray | None = None,
    layer_sizes: Sequence[int | tuple[int, ...]] | None = None,
    batch_size: int | None = None,
    sigma: Number = 0.05,
    activities: Sequence[ArrayLike] | None = None,
    record_activities: bool = False,
    record_energies: bool = False,
    record_every: float | None = None,
    activity_norms: bool = False,
    param_norms: bool = False,
    grad_norms: bool = False,
    calculate_accuracy: bool = False,
    **options: Unpack[Options],
) -> dict[str, Any]:
    r"""One step of training with predictive coding: inference from a feedforward pass (or from
    random activities, without an input), then learning where it ended.

    **Arguments:**

    - `model`: the layers, callables on one example.
    - `optim`, `opt_state`: an Optax optimiser and its state, see [`jpc.update_params`][].
    - `output`: a batch of what $z_L$ is clamped to.
    - `input`: a batch of what $z_0$ is clamped to; without it $z_0$ is inferred too.
    - `skip_model`: one skip connection per layer, see [`jpc.make_skip_model`][].
    - `ode_solver`, `max_t1`, `dt`, `stepsize_controller`: see [`jpc.GradientFlow`][].
    - `inference`: any [`jpc.AbstractInference`][], instead of the solver and its options.
    - `key`, `layer_sizes`, `sigma`: random activities to start from, see
        [`jpc.init_activities_from_normal`][]; needed without an input. `batch_size` is known
        from the output and only checked.
    - `activities`: those to start from.
    - `record_activities`, `record_energies`: whether to return them over time.
    - `record_every`: records at multiples of this time instead of at every step.
    - `activity_norms`, `param_norms`, `grad_norms`, `calculate_accuracy`: metrics to return.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    A dictionary; metrics that were not asked for are `None`.

    - `model`, `skip_model`, `optim`, `opt_state`: for the next step.
    - `loss`, `acc`: of the feedforward prediction before the step, if there is an input.
    - `activities`: at the end of inference, or over time (the first axis) when recorded.
    - `energies`: of the layers 1 to L at the end of inference, or over time (the first axis).
    - `t_max`: the time at which the flow ended, the longest of the batch.
    - `activity_norms`, `model_param_norms`, `skip_model_param_norms`, `model_grad_norms`,
      `skip_model_grad_norms`: by layer; parameters after the step.
    - `result`, `stats`: see [`jpc.Inferred`][].
    """
    flow = (ode_solver, max_t1, dt, stepsize_controller)
    inference = choose_inference(inference, options, *flow, default_t1=20)
    if input is None and activities is None:
        activities = _random_activities(key, layer_sizes, output, batch_size, sigma)
    elif batch_size is not None:
        _check_batch_size(batch_size, output)
    problem = ((model, skip_model), activities, output, input, options)
    kept = (record_activities, record_energies)
    record = choose_record(inference, problem, any(kept), record_every)
    metrics = (activity_norms, param_norms, grad_norms, calculate_accuracy)
    answer = call(_pc_step, *problem, inference, record, kept, metrics, optim, opt_state)
    return _trim(answer, kept) | dict(optim=optim)


def _random_activities(key, layer_sizes, output, batch_size, sigma) -> list[Array]:
    if key is None or layer_sizes is None:
        missing = "key" if key is None else "layer_sizes"
        raise ValueError(
            "Without an input, inference starts from random activities: give key and "
            f"layer_sizes (z_0 ... z_L), or activities. {missing} is missing."
        )
    batch_size = _check_batch_size(batch_size, output)
    return init_activities_from_normal(key, layer_sizes, "unsupervised", batch_size, sigma)


def _check_batch_size(batch_size: int | None, output: ArrayLike) -> int:
    size = len(data("output", output))
    if batch_size not in (None, size):
        raise ValueError(f"batch_size is {batch_size}, but the output has {size} examples.")
    return size


def _pc_step(setup, params, posed, inference, record, kept, metrics, optim, opt_state):
    activity_norms, param_norms, grad_norms, accuracy = metrics
    inferred = inference(setup.energy, *posed, record=record and _keep(setup, record, kept))
    ended = Posed(posed.layers, inferred.nodes, posed.clamps)
    activities = with_prediction(ended.layers, ended.nodes)
    learned = descend(of_params(setup), params, *ended[1:], optim, opt_state)
    params, opt_state, grads = learned
    norms = compute_param_norms(params) if param_norms else (None, None)
    steps = compute_param_norms(grads) if grad_norms else (None, None)
    return dict(
        model=params[0],
        skip_model=params[1],
        opt_state=opt_state,
        **_prediction(setup, posed, accuracy),
        **_way(setup, ended, activities, inferred.trajectory, kept),
        t_max=_t_max(inferred),
        activity_norms=compute_activity_norms(activities) if activity_norms else None,
        model_param_norms=norms[0],
        skip_model_param_norms=norms[1],
        model_grad_norms=steps[0],
        skip_model_grad_norms=steps[1],
        result=inferred.result,
        stats=inferred.stats,
    )


def _prediction(setup: Setup, posed: Posed, accuracy: bool) -> dict[str, Array | None]:
    input, output = posed.clamps[0], posed.clamps[-1]
    if input is None:
        return dict(loss=None, acc=None)
    preds = jax.vmap(lambda z: feedforward(posed.layers, z)[-1])(input)
    loss = jnp.mean(jax.vmap(setup.loss)(output, preds))
    return dict(loss=loss, acc=compute_accuracy(output, preds) if accuracy else None)


def _keep(setup: Setup, record: Record, kept: tuple[bool, bool]) -> Record:
    """A record of what was asked for: the nodes, the terms of the energy, or both."""
    activities, energies = kept

    def fn(params, nodes, clamps):
        terms = setup.chain.terms(params, nodes, clamps) if energies else None
        return nodes if activities else None, terms

    return Record(fn, record.ts, record.length)


def _way(setup, ended, activities, trajectory, kept) -> dict[str, Any]:
    energies = jnp.stack(jax.tree.leaves(setup.chain.layerwise(*ended)))
    if trajectory is None:
        return dict(activities=activities, energies=energies, length=None)
    nodes, terms = trajectory.values
    if kept[0]:
        activities = with_predictions(ended.layers, nodes)
    if kept[1]:
        energies = jnp.stack([jnp.mean(t, axis=1) for t in jax.tree.leaves(terms)], axis=1)
    return dict(activities=activities, energies=energies, length=trajectory.length)


def _t_max(inferred) -> Array | None:
    return jnp.max(inferred.stats["t1"]) if "t1" in inferred.stats else None


def _trim(answer: dict[str, Any], kept: tuple[bool, bool]) -> dict[str, Any]:
    """Cuts off the room that was made for more steps than there were."""
    length = answer.pop("length")
    cut = lambda x: x if isinstance(length, Tracer) else x[: int(length)]
    for name, recorded in zip(("activities", "energies"), kept, strict=True):
        if length is not None and recorded:
            answer[name] = jax.tree.map(cut, answer[name])
    return answer


def make_hpc_step(
    generator: Layers,
    amortiser: Layers,
    optims: Sequence[optax.GradientTransformation],
    opt_states: Sequence[PyTree],
    output: ArrayLike,
    input: ArrayLike | None = None,
    *,
    ode_solver: dfx.AbstractSolver = HEUN,
    max_t1: Number = 300,
    dt: Number | None = None,
    stepsize_controller: dfx.AbstractStepSizeController = PID,
    inference: AbstractInference | None = None,
    record_activities: bool = False,
    record_energies: bool = False,
    record_every: float | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    r"""One step of training with hybrid predictive coding: an amortiser guesses the generator's
    activities, inference goes on from there, the generator learns where it ended, and the
    amortiser learns to guess that.

    **Arguments:**

    - `generator`: the layers from $z_0$ to the data.
    - `amortiser`: the layers from the data to $z_0$, as many.
    - `optims`, `opt_states`: an optimiser and a state for each of the two.
    - `output`: a batch of data, what $z_L$ is clamped to and where the amortiser starts.
    - `input`: a batch of what $z_0$ is clamped to; without it $z_0$ is inferred too.
    - `ode_solver`, `max_t1`, `dt`, `stepsize_controller`: see [`jpc.GradientFlow`][].
    - `inference`: any [`jpc.AbstractInference`][], instead of the solver and its options.
    - `record_activities`, `record_energies`, `record_every`: as in [`jpc.make_pc_step`][], for
        the generator.
    - `options`: see [`jpc.Options`][], for the generator.

    **Returns:**

    A dictionary.

    - `generator`, `amortiser`, `optims`, `opt_states`: for the next step.
    - `activities`: a pair, those that the amortiser guessed and those that were inferred.
    - `losses`: a pair, before the step: of the generator's feedforward prediction of the
      output (from the input, or from the amortiser's guess of it), and of the amortiser's
      guess of the input (or of what was inferred).
    - `energies`: a pair, of the generator's layers (over time when recorded) and of the
      amortiser's.
    - `t_max`, `result`, `stats`: as in [`jpc.make_pc_step`][].
    """
    flow = (ode_solver, max_t1, dt, stepsize_controller)
    inference = choose_inference(inference, options, *flow, default_t1=300)
    for name, pair in (("optims", optims), ("opt_states", opt_states)):
        if len(pair) != 2:
            raise ValueError(f"{name} must be two, the generator's and the amortiser's.")
    guesses = init_activities_with_amort(amortiser, generator, output)
    start = guesses if input is None else guesses[1:]
    problem = ((generator, None), start, output, input, options)
    kept = (record_activities, record_energies)
    record = choose_record(inference, problem, any(kept), record_every)
    args = (inference, record, kept, guesses, amortiser, optims, tuple(opt_states))
    answer = _trim(call(_hpc_step, *problem, *args), kept)
    answer["activities"] = (guesses, answer["activities"])
    answer["energies"] = (answer["energies"], answer.pop("amortiser_energies"))
    return answer | dict(optims=optims)


def _hpc_step(
    setup, params, posed, inference, record, kept, guesses, amortiser, optims, opt_states
):
    inferred = inference(setup.energy, *posed, record=record and _keep(setup, record, kept))
    ended = Posed(posed.layers, inferred.nodes, posed.clamps)
    activities = with_prediction(ended.layers, ended.nodes)
    input, output = posed.clamps[0], posed.clamps[-1]
    (generator, _), gen_state, _ = descend(
        of_params(setup), params, *ended[1:], optims[0], opt_states[0]
    )
    energy = AmortisedEnergy()
    chain = amortised_chain(activities, guesses, output, input)
    of_pair = lambda params, nodes, clamps: energy(params[0], nodes, clamps)
    (new_amortiser, _), amort_state, _ = descend(
        of_pair, (amortiser, None), *chain, optims[1], opt_states[1]
    )
    target = activities[0] if input is None else input
    preds = jax.vmap(lambda z: feedforward(posed.layers, z)[-1])(
        guesses[0] if input is None else input
    )
    losses = (
        jnp.mean(jax.vmap(setup.loss)(output, preds)),
        mse_loss(guesses[0], target),
    )
    return dict(
        generator=generator,
        amortiser=new_amortiser,
        opt_states=(gen_state, amort_state),
        losses=losses,
        **_way(setup, ended, activities, inferred.trajectory, kept),
        amortiser_energies=jnp.stack(energy.layerwise(amortiser, *chain)),
        t_max=_t_max(inferred),
        result=inferred.result,
        stats=inferred.stats,
    )
