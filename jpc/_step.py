from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._clamp import Masked
from ._energy import AmortisedEnergy, Node
from ._functional import (
    Activities,
    amortised_chain,
    call,
    choose_record,
    descend,
    layer_energies,
    make_layers,
    trim,
    with_prediction,
)
from ._generic import advance, converged
from ._given import check_count, check_flags
from ._inference import Record
from ._init import Sizes, init_activities_with_amort, start_at_random
from ._layer import feedforward_batch
from ._metrics import (
    accuracy,
    compute_accuracy,
    compute_activity_norms,
    compute_param_norms,
    mse_loss,
)
from ._options import (
    FlowOptions,
    Params,
    Posed,
    Setup,
    Skips,
    data,
    refuse_masks,
    reported_loss,
    setup,
)
from ._types import Given, Layers, Number


def make_pc_step(
    model: Given[Layers],
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    *,
    skip_model: Skips = None,
    key: Given[PRNGKeyArray | None] = None,
    layer_sizes: Sizes | None = None,
    batch_size: Given[int | None] = None,
    sigma: Given[Number] = 0.05,
    activities: Activities | None = None,
    record_activities: Given[bool] = False,
    record_energies: Given[bool] = False,
    record_every: Given[Number | None] = None,
    activity_norms: Given[bool] = False,
    param_norms: Given[bool] = False,
    grad_norms: Given[bool] = False,
    calculate_accuracy: Given[bool] = False,
    **options: Unpack[FlowOptions],
) -> dict[str, Any]:
    r"""One step of training with predictive coding: inference from a feedforward pass (or from
    random activities, without an input), then learning where it ended.

    **Arguments:**

    - `model`: the layers, callables on one example.
    - `optim`, `opt_state`: an Optax optimiser and its state, see [`jpc.update_params`][].
    - `output`: a batch of what $z_L$ is clamped to.
    - `input`: a batch of what $z_0$ is clamped to; without it $z_0$ is inferred too.
    - `skip_model`: one skip connection per layer, see [`jpc.make_skip_model`][].
    - `key`, `layer_sizes`, `sigma`: random activities to start from, see
        [`jpc.init_activities_from_normal`][]; needed without an input. The key also goes to a
        method of inference that needs one. `batch_size` is known
        from the output and only checked.
    - `activities`: those to start from.
    - `record_activities`, `record_energies`: whether to return them over time.
    - `record_every`: records at multiples of this time instead of at every step.
    - `activity_norms`, `param_norms`, `grad_norms`, `calculate_accuracy`: metrics to return.
    - `options`: see [`jpc.FlowOptions`][], and [`jpc.Options`][] for outputs and inputs that are
        given in part (`mask`, `input_mask`); `max_t1` is 20 by default.

    **Returns:**

    A dictionary; metrics that were not asked for are `None`.

    - `model`, `skip_model`, `optim`, `opt_state`: for the next step.
    - `loss`, `acc`: of the feedforward prediction before the step, if there is an input. With
      a `mask` the loss counts the units that are given (an example without any costs nothing),
      and the accuracy counts the examples whose output is given whole (NaN if there are none).
      With an `input_mask` the prediction is from zeros where the input is not given.
    - `activities`: at the end of inference, or over time (the first axis) when recorded. With
      masks they complete the output and the input, see [`jpc.solve_inference`][].
    - `energies`: of the layers 1 to L at the end of inference; when recorded, with a row for each
      layer and a column for each time.
    - `t_max`: the number of entries that were recorded, so that `energies[:, t_max - 1]` is the
      last; `t1`: the time at which the flow ended, the longest of the batch.
    - `activity_norms`, `model_param_norms`, `skip_model_param_norms`, `model_grad_norms`,
      `skip_model_grad_norms`: by layer; parameters after the step.
    - `result`, `stats`: see [`jpc.Inferred`][]; `converged`: the share of examples that have.
    - `inference`: the method to use for the next batch, if this one has found something that is
      of use there, see [`jpc.Equilibrium`][]. [`jpc.fit`][] uses it by itself.

    **Example:**

    ```python
    import equinox as eqx
    import jax.random as jr
    import optax

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    optim = optax.adam(1e-3)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    result = jpc.make_pc_step(model, optim, opt_state, y, x, inference=jpc.Descent(0.1, 20))
    model, opt_state = result["model"], result["opt_state"]
    ```
    """
    check_flags(
        record_activities=record_activities,
        record_energies=record_energies,
        activity_norms=activity_norms,
        param_norms=param_norms,
        grad_norms=grad_norms,
        calculate_accuracy=calculate_accuracy,
    )
    check_count("batch_size", batch_size, none=True)
    size = len(data("output", output))
    if batch_size not in (None, size):
        raise ValueError(f"batch_size is {batch_size}, but the output has {size} examples.")
    if input is None and activities is None:
        activities = start_at_random(key, layer_sizes, size, sigma)
    params = (model, skip_model)
    problem = (setup(params, options, max_t1=20.0), params, activities, output, input)
    kept = (record_activities, record_energies)
    record = choose_record(problem, any(kept), record_every)
    metrics = (activity_norms, param_norms, grad_norms, calculate_accuracy)
    answer = call(_pc_step, *problem, record, kept, metrics, optim, opt_state, key)
    return _trim(answer, kept) | dict(optim=optim)


def _pc_step(setup, params, posed, record, kept, metrics, optim, opt_state, key):
    activity_norms, param_norms, grad_norms, wants_accuracy = metrics
    ended, lesson, answer = _infer(setup, params, posed, record, kept, key)
    learned = descend(*lesson, optim, opt_state)
    input, output = posed.clamps[0], posed.clamps[-1]
    activities = with_prediction(*ended)
    norms = compute_param_norms((learned["model"], learned["skip_model"]))
    grads = compute_param_norms(learned.pop("grads"))
    loss = acc = None
    if input is not None:
        loss, preds = feedforward_loss(setup, posed.layers, input, output)
        acc = _accuracy(output, preds) if wants_accuracy else None
    return dict(
        **learned,
        **answer,
        loss=loss,
        acc=acc,
        activity_norms=compute_activity_norms(activities) if activity_norms else None,
        model_param_norms=norms[0] if param_norms else None,
        skip_model_param_norms=norms[1] if param_norms else None,
        model_grad_norms=grads[0] if grad_norms else None,
        skip_model_grad_norms=grads[1] if grad_norms else None,
    )


def _infer(setup: Setup, params: Params, posed: Posed, record: Record | None, kept, key):
    """Where inference ended, what there is to learn from it, and to say of it."""

    def keep(params, nodes, clamps):
        terms = setup.chain.terms(params, nodes, clamps) if kept[1] else None
        return nodes if kept[0] else None, terms

    record = record and Record(keep, record.ts, record.length)
    problem = (setup.energy, setup.inference, params, posed.nodes, posed.clamps)
    how: Any = dict(transform=make_layers(setup, posed), record=record, key=key)
    inferred, lesson, states = advance(*problem, **how)
    ended = Posed(posed.layers, inferred.nodes, posed.clamps)
    activities, energies = with_prediction(*ended), layer_energies(setup, ended)
    way, stats = inferred.trajectory, inferred.stats
    if way is not None and kept[0]:
        at = lambda nodes: with_prediction(posed.layers, nodes, posed.clamps)
        activities = jax.vmap(at)(way.values[0])
    if way is not None and kept[1]:
        terms = jax.tree.leaves(way.values[1])
        energies = jnp.stack([jnp.mean(term, axis=1) for term in terms], axis=1)
    return (
        ended,
        (lesson, params, states, posed.clamps),
        dict(
            activities=activities,
            energies=energies,
            length=None if way is None else way.length,
            t1=jnp.max(stats["t1"]) if "t1" in stats else None,
            result=inferred.result,
            stats=stats,
            inference=inferred.method,
            converged=converged(inferred),
        ),
    )


def feedforward_loss(setup: Setup, layers: Layers, input: Any, output: Any) -> tuple[Array, Array]:
    z_0 = input.value if isinstance(input, Masked) else input
    preds = feedforward_batch(layers, z_0)[-1]  # XLA finds that inference starts with it.
    cost = Node(loss=reported_loss(setup, layers)).given_cost
    return jnp.mean(jax.vmap(cost)(preds, output)), preds


def _accuracy(output: Any, preds: Array) -> Array:
    if not isinstance(output, Masked):
        return compute_accuracy(output, preds)
    whole = jnp.all(output.mask.reshape(len(preds), -1), axis=1)
    return jnp.mean(jax.vmap(accuracy)(output.value, preds), where=whole)


def _trim(answer: dict[str, Any], kept: tuple[bool, bool]) -> dict[str, Any]:
    """Cuts off the room that was made for more steps than there were."""
    length = answer.pop("length")
    if kept[0]:
        answer["activities"] = trim(answer["activities"], length)
    if kept[1]:
        answer["energies"] = trim(answer["energies"], length).T
    answer["t_max"] = length if length is None or isinstance(length, Tracer) else int(length)
    return answer


def make_hpc_step(
    generator: Given[Layers],
    amortiser: Given[Layers],
    optims: Given[Sequence[optax.GradientTransformation]],
    opt_states: Given[Sequence[PyTree]],
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    *,
    key: Given[PRNGKeyArray | None] = None,
    record_activities: Given[bool] = False,
    record_energies: Given[bool] = False,
    record_every: Given[Number | None] = None,
    **options: Unpack[FlowOptions],
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
    - `key`: goes to a method of inference that needs one.
    - `record_activities`, `record_energies`, `record_every`: as in [`jpc.make_pc_step`][], for
        the generator.
    - `options`: see [`jpc.FlowOptions`][], for the generator; `max_t1` is 300 by default.

    **Returns:**

    A dictionary.

    - `generator`, `amortiser`, `optims`, `opt_states`: for the next step.
    - `activities`: a pair, those that the amortiser guessed and those that were inferred.
    - `losses`: a pair, before the step: of the generator's feedforward prediction of the
      output (from the input, or from the amortiser's guess of it), and of the amortiser's
      guess of the input (or of what was inferred).
    - `energies`: a pair, of the generator's layers (over time when recorded) and of the
      amortiser's.
    - `t_max`, `t1`, `result`, `stats`, `converged`, `inference`: as in [`jpc.make_pc_step`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    optims, models = (optim, optim), (model, back)
    states = [optim.init(eqx.filter(m, eqx.is_array)) for m in models]
    result = jpc.make_hpc_step(*models, optims, states, y, x, inference=jpc.Descent(0.1, 20))
    ```
    """
    pairs = [isinstance(x, Sequence) and len(x) == 2 for x in (optims, opt_states)]
    if not all(pairs) or isinstance(optims, optax.GradientTransformation):
        raise ValueError("optims and opt_states are lists of two, the generator's first.")
    check_flags(record_activities=record_activities, record_energies=record_energies)
    refuse_masks("jpc.make_hpc_step", options)
    output = data("output", output)
    guesses = init_activities_with_amort(amortiser, generator, output)
    start = guesses if input is None else guesses[1:]
    params = (generator, None)
    problem = (setup(params, options, max_t1=300.0), params, start, output, input)
    kept = (record_activities, record_energies)
    record = choose_record(problem, any(kept), record_every)
    args = (record, kept, guesses, amortiser, tuple(optims), tuple(opt_states), key)
    answer = _trim(call(_hpc_step, *problem, *args), kept) | dict(optims=optims)
    answer["activities"] = (guesses, answer["activities"])
    answer["energies"] = (answer["energies"], answer.pop("amortiser_energies"))
    return answer


def _hpc_step(setup, params, posed, record, kept, guesses, amortiser, optims, opt_states, key):
    ended, lesson, answer = _infer(setup, params, posed, record, kept, key)
    input, output = posed.clamps[0], posed.clamps[-1]
    states = zip(optims, opt_states, strict=True)
    gen = descend(*lesson, *next(states), name="generator")
    energy = AmortisedEnergy()
    of_pair = lambda params, nodes, clamps: energy(params[0], nodes, clamps)
    chain = amortised_chain(with_prediction(*ended), guesses, output, input)
    amort = descend(of_pair, (amortiser, None), *chain, *next(states), name="amortiser")
    start, target = (guesses[0], ended.nodes[0]) if input is None else (input, input)
    return dict(
        **answer,
        generator=gen["model"],
        amortiser=amort["model"],
        opt_states=(gen["opt_state"], amort["opt_state"]),
        losses=(
            feedforward_loss(setup, posed.layers, start, output)[0],
            mse_loss(guesses[0], target),
        ),
        amortiser_energies=jnp.stack(energy.layerwise(amortiser, *chain)),
    )
