"""The parts of a training step, as the paper calls them. Each poses a problem of the core and
answers it; there is no mathematics here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PyTree

from ._energy import AmortisedEnergy
from ._inference import (
    AbstractInference,
    GradientFlow,
    Record,
    raise_if_not_finite,
)
from ._learn import learn
from ._options import (
    Options,
    Params,
    Posed,
    Setup,
    check_model,
    check_params,
    choice,
    data,
    floats_to_arrays,
    network,
    number,
    optional_data,
    pose,
    setup,
)
from ._types import Clamps, Layers, Nodes, Number, Scalar

HEUN = dfx.Heun()
PID = dfx.PIDController(rtol=1e-3, atol=1e-3)


# --- the door ---


def call(
    fn: Callable,
    params: Params,
    activities: Sequence[ArrayLike] | None,
    output: ArrayLike,
    input: ArrayLike | None,
    options: Options,
    *args: Any,
) -> Any:
    """Calls `fn(setup, params, posed, *args)`, jitted, on the problem that is posed."""
    check_params(params)
    if activities is not None:
        activities = [data(f"activities[{i}]", z) for i, z in enumerate(activities)]
    output, input = data("output", output), optional_data("input", input)
    return _jitted(fn, setup(params[0], options), params, activities, output, input, *args)


@eqx.filter_jit
def _jitted(fn, setup, params, activities, output, input, *args):
    named = {"output": output, "input": input, "activities": activities}
    output = raise_if_not_finite(named, output)
    return fn(setup, params, pose(setup, params, activities, output, input), *args)


def with_prediction(layers: Layers, nodes: Nodes) -> list[Array]:
    """The free states, then the prediction of the output."""
    return [*jax.tree.leaves(nodes), jax.vmap(layers[-1])(nodes[-2])]


# --- energies and gradients ---


def pc_energy_fn(
    params: Params,
    activities: Sequence[ArrayLike],
    y: ArrayLike,
    *,
    x: ArrayLike | None = None,
    record_layers: bool = False,
    **options: Unpack[Options],
) -> Scalar | Array:
    r"""The energy of a predictive coding network,

    $$F = \frac{1}{N} \sum_{i=1}^N \sum_{\ell=1}^L
          \frac{1}{2} \lVert z_{\ell,i} - f_\ell(z_{\ell-1,i}) \rVert^2,
          \qquad z_0 = x, \ z_L = y.$$

    **Arguments:**

    - `params`: the pair of a model and its skip connections, `(model, None)` without.
    - `activities`: $z_1 \dots z_L$, with $z_0$ first if there is no `x`. The last one, the
        prediction of the output, does not matter here.
    - `y`: a batch of outputs.
    - `x`: a batch of inputs, if the input is given.
    - `record_layers`: whether to return the energy of each layer, without penalties.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    A scalar, or an array of the `L` layers' energies in chain order.
    """
    return call(_energy, params, activities, y, x, options, record_layers)


def _energy(setup: Setup, params: Params, posed: Posed, record_layers: bool) -> Array:
    if record_layers:
        return jnp.stack(jax.tree.leaves(setup.chain.layerwise(*posed)))
    return setup.energy(*posed)


def compute_pc_activity_grad(
    params: Params,
    activities: Sequence[ArrayLike],
    y: ArrayLike,
    *,
    x: ArrayLike | None = None,
    **options: Unpack[Options],
) -> tuple[Scalar, list[Array]]:
    """The gradient of the energy in the activities. Each example's is that of its own energy,
    unless `reduction="mean"`.

    **Arguments:** those of [`jpc.pc_energy_fn`][].

    **Returns:**

    The energy, and gradients like the activities. The gradient in the last activity, the
    prediction of the output, is zero.
    """
    return call(_activity_grad, params, activities, y, x, options)


def _activity_grad(setup: Setup, params: Params, posed: Posed) -> tuple[Scalar, list[Array]]:
    energy, grads = jax.value_and_grad(setup.energy, argnums=1)(*posed)
    output = posed.clamps[-1]
    grads = [*jax.tree.leaves(grads), jnp.zeros_like(output)]
    scale = len(output) if setup.reduction == "sum" else 1
    return energy, [scale * g for g in grads]


def neg_pc_activity_grad(t: Any, activities: Sequence[Array], args: tuple) -> list[Array]:
    """The vector field of the inference flow, for use with Diffrax directly:
    `diffrax.ODETerm(jpc.neg_pc_activity_grad)`.

    **Arguments:**

    - `t`: the time, which does not matter.
    - `activities`: as in [`jpc.pc_energy_fn`][].
    - `args`: `(params, y, x)`, or `(params, y, x, options)` with a dictionary of
        [`jpc.Options`][].

    **Returns:**

    The negative gradient of the energy in the activities.
    """
    del t
    params, y, x, *rest = args
    _, grads = compute_pc_activity_grad(params, activities, y, x=x, **dict(*rest))
    return jax.tree.map(jnp.negative, grads)


def compute_pc_param_grads(
    params: Params,
    activities: Sequence[ArrayLike],
    y: ArrayLike,
    *,
    x: ArrayLike | None = None,
    **options: Unpack[Options],
) -> Params:
    """The gradient of the energy in the parameters.

    **Arguments:** those of [`jpc.pc_energy_fn`][].

    **Returns:**

    Gradients like `params`, with `None` for what is not an array.
    """
    return call(_param_grads, params, activities, y, x, options)


def _param_grads(setup: Setup, params: Params, posed: Posed) -> Params:
    return eqx.filter_grad(of_params(setup))(params, posed.nodes, posed.clamps)


def of_params(setup: Setup) -> Callable[[Params, Nodes, Clamps], Scalar]:
    """The energy as a function of a model and its skip connections, rather than of layers."""

    def energy(params, nodes, clamps):
        layers, _ = network(setup, params, eqx.combine(nodes, clamps)[0])
        return setup.energy(layers, nodes, clamps)

    return energy


# --- inference ---


def solve_inference(
    params: Params,
    activities: Sequence[ArrayLike],
    output: ArrayLike,
    input: ArrayLike | None = None,
    *,
    solver: dfx.AbstractSolver = HEUN,
    max_t1: Number = 20,
    dt: Number | None = None,
    stepsize_controller: dfx.AbstractStepSizeController = PID,
    record_iters: bool = False,
    record_every: float | None = None,
    inference: AbstractInference | None = None,
    **options: Unpack[Options],
) -> list[Array]:
    r"""Inference: integrates the gradient flow of the energy in the activities,
    $\dot z_\ell = -\partial F / \partial z_\ell$.

    **Arguments:**

    - `params`, `activities`: as in [`jpc.pc_energy_fn`][]; the activities are the start.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.
    - `solver`, `max_t1`, `dt`, `stepsize_controller`: see [`jpc.GradientFlow`][].
    - `record_iters`: whether to return the start and every step.
    - `record_every`: returns the activities at multiples of this time instead.
    - `inference`: any [`jpc.AbstractInference`][], instead of the solver and its options.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    Activities like those given, at the end of inference: they go straight into
    [`jpc.update_params`][]. When recorded they have a leading axis of time.
    """
    flow = (solver, max_t1, dt, stepsize_controller)
    inference = choose_inference(inference, options, *flow, default_t1=20)
    problem = (params, activities, output, input, options)
    record = choose_record(inference, problem, record_iters, record_every)
    ends, way, length = call(_solve, *problem, inference, record)
    return ends if record is None else [z[: int(length)] for z in way]


def _solve(setup, params, posed, inference, record):
    inferred = inference(setup.energy, *posed, record=record)
    ends = with_prediction(posed.layers, inferred.nodes)
    if record is None:
        return ends, None, None
    way = inferred.trajectory
    return ends, with_predictions(posed.layers, way.values), way.length


def with_predictions(layers: Layers, nodes: Nodes) -> list[Array]:
    """The free states, then the prediction of the output, all with an axis of time first."""
    return jax.vmap(lambda z: with_prediction(layers, z))(nodes)


def choose_inference(
    inference: AbstractInference | None,
    options: Options,
    solver: dfx.AbstractSolver,
    max_t1: Number,
    dt: Number | None,
    controller: dfx.AbstractStepSizeController,
    *,
    default_t1: Number,
) -> AbstractInference:
    """The method of inference that was asked for, its numbers as arrays."""
    if inference is None:
        t1 = number("max_t1", max_t1, above=0.0)
        dt0 = None if dt is None else number("dt", dt, above=0.0)
        reduction = choice("reduction", options.get("reduction", "sum"), ("sum", "mean"))
        return floats_to_arrays(GradientFlow(solver, t1, dt0, controller, reduction=reduction))
    if not isinstance(inference, AbstractInference):
        raise TypeError(
            "inference must be a jpc.AbstractInference such as jpc.GradientFlow(), got "
            f"{inference!r}."
        )
    given = (solver, max_t1, dt, controller) != (HEUN, default_t1, None, PID)
    if given or "reduction" in options:
        raise ValueError(
            "Give either inference, or a solver and its options (max_t1, dt, "
            "stepsize_controller, reduction): not both."
        )
    return floats_to_arrays(inference)


def choose_record(
    inference: AbstractInference,
    problem: tuple,
    record: bool,
    every: float | None,
) -> Record | None:
    """What to record: a grid of times, or every step, with room for as many as there are."""
    if every is not None:
        if not isinstance(inference, GradientFlow):
            raise ValueError("record_every is a time, and only jpc.GradientFlow has one.")
        steps = inference.t1 / number("record_every", every, above=0.0)
        return Record(ts=every * jnp.arange(1 + int(steps + 1e-4)))
    if not record:
        return None
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(problem)):
        raise ValueError(
            "Under jit the number of steps is not known in advance, so recording every step "
            "would have to make room for all that are allowed: give record_every."
        )
    steps = int(call(_count_steps, *problem, inference))
    return Record(length=1 << max(steps - 1, 0).bit_length())


def _count_steps(setup, params, posed, inference):
    return jnp.max(inference(setup.energy, *posed).stats["steps"])


# --- one step of an Optax optimiser ---


def update_activities(
    params: Params,
    activities: Sequence[ArrayLike],
    optim: optax.GradientTransformation,
    opt_state: PyTree,
    output: ArrayLike,
    input: ArrayLike | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """One step of inference with an Optax optimiser.

    **Arguments:**

    - `params`, `activities`, `options`: as in [`jpc.pc_energy_fn`][].
    - `optim`, `opt_state`: an Optax optimiser and its state, `optim.init(activities)` at first.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary with the `energy` before the step, the new `activities`, `optim` and the new
    `opt_state`.
    """
    args = (params, activities, output, input, options)
    energy, activities, opt_state = call(_update_activities, *args, activities, optim, opt_state)
    return dict(energy=energy, activities=activities, optim=optim, opt_state=opt_state)


def _update_activities(setup, params, posed, activities, optim, opt_state):
    check_state("activities", optim, opt_state, activities)
    energy, grads = _activity_grad(setup, params, posed)
    updates, opt_state = optim.update(grads, opt_state, activities)
    free = [z + update for z, update in zip(activities, updates, strict=True)][:-1]
    return energy, [*free, jax.vmap(posed.layers[-1])(free[-1])], opt_state


def update_params(
    params: Params,
    activities: Sequence[ArrayLike],
    optim: optax.GradientTransformation,
    opt_state: PyTree,
    output: ArrayLike,
    input: ArrayLike | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Learning: one step of an Optax optimiser on the energy, in the parameters.

    **Arguments:**

    - `params`, `activities`, `options`: as in [`jpc.pc_energy_fn`][]; the activities are those
        at the end of inference.
    - `optim`, `opt_state`: an Optax optimiser and its state, at first
        `optim.init((eqx.filter(model, eqx.is_array), None))` or
        `optim.init(eqx.filter(model, eqx.is_array))`.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary with the new `model` and `skip_model`, the `grads`, `optim` and the new
    `opt_state`.
    """
    args = (params, activities, output, input, options)
    (model, skip_model), opt_state, grads = call(_update_params, *args, optim, opt_state)
    return dict(model=model, skip_model=skip_model, grads=grads, optim=optim, opt_state=opt_state)


def _update_params(setup, params, posed, optim, opt_state):
    return descend(of_params(setup), params, posed.nodes, posed.clamps, optim, opt_state)


def descend(
    energy: Callable, params: Params, nodes: Nodes, clamps: Clamps, optim, opt_state
) -> tuple[Params, PyTree, Params]:
    """One step of learning of a model and its skip connections, whose optimiser's state may be
    that of the bare model: the new parameters, the new state and the gradients.
    """
    model, skip_model = params
    if skip_model is not None or fits(optim, opt_state, params):
        check_state("model", optim, opt_state, params)
        learned = learn(energy, params, nodes, clamps, optim=optim, opt_state=opt_state)
        params, grads = learned.params, learned.grads
    else:
        check_state("model", optim, opt_state, model)
        bare = lambda model, nodes, clamps: energy((model, None), nodes, clamps)
        learned = learn(bare, model, nodes, clamps, optim=optim, opt_state=opt_state)
        params, grads = (learned.params, None), (learned.grads, None)
    named = {f"Learning: layer {i}": layer for i, layer in enumerate(params[0], start=1)}
    return raise_if_not_finite(named, params), learned.opt_state, grads


def fits(optim: optax.GradientTransformation, opt_state: PyTree, params: PyTree) -> bool:
    """Whether a state is one that an optimiser has for these parameters."""
    expected = jax.eval_shape(optim.init, eqx.filter(params, eqx.is_inexact_array))
    shapes = lambda tree: [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    same = jax.tree.structure(expected) == jax.tree.structure(opt_state)
    return same and shapes(expected) == shapes(opt_state)


def check_state(
    name: str, optim: optax.GradientTransformation, opt_state: PyTree, params: PyTree
) -> None:
    """Refuses a state of another optimiser, or of other parameters."""
    if not fits(optim, opt_state, params):
        init = "activities" if name == "activities" else f"eqx.filter({name}, eqx.is_array)"
        raise ValueError(
            f"opt_state is not a state of this optimiser for this {name}: make one with "
            f"optim.init({init}), and keep the one that each update returns."
        )


# --- hybrid predictive coding ---


def hpc_energy_fn(
    model: Layers,
    equilib_activities: Sequence[ArrayLike],
    amort_activities: Sequence[ArrayLike],
    x: ArrayLike,
    y: ArrayLike | None = None,
    record_layers: bool = False,
) -> Scalar | Array:
    r"""The energy of an amortiser, whose targets are what a generator inferred,

    $$F = \frac{1}{N} \sum_{i=1}^N \sum_{\ell=1}^L
          \frac{1}{2} \lVert z^*_{L-\ell,i} - q_\ell(a_{\ell-1,i}) \rVert^2.$$

    **Arguments:**

    - `model`: the amortiser's layers $q_1 \dots q_L$, from the data to the generator's $z_0$.
    - `equilib_activities`: the generator's activities $z^*$ at the end of inference, as
        [`jpc.solve_inference`][] returns them.
    - `amort_activities`: the amortiser's guesses $a$, as
        [`jpc.init_activities_with_amort`][] returns them.
    - `x`: a batch of data, the amortiser's input $a_0$.
    - `y`: a batch of targets of its last layer, if the generator's $z_0$ is given.
    - `record_layers`: whether to return the energy of each of its layers.

    **Returns:**

    A scalar, or an array of the amortiser's layers' energies in its own order.
    """
    nodes, clamps = _amortised(model, equilib_activities, amort_activities, x, y)
    return _hpc_energy(list(model), nodes, clamps, record_layers)


@eqx.filter_jit
def _hpc_energy(model, nodes, clamps, record_layers):
    terms = AmortisedEnergy().layerwise(model, nodes, clamps)
    return jnp.stack(terms) if record_layers else jnp.sum(jnp.stack(terms))


def compute_hpc_param_grads(
    model: Layers,
    equilib_activities: Sequence[ArrayLike],
    amort_activities: Sequence[ArrayLike],
    x: ArrayLike,
    y: ArrayLike | None = None,
) -> PyTree:
    """The gradient of an amortiser's energy in its parameters.

    **Arguments:** those of [`jpc.hpc_energy_fn`][].

    **Returns:**

    Gradients like `model`, with `None` for what is not an array.
    """
    nodes, clamps = _amortised(model, equilib_activities, amort_activities, x, y)
    return _hpc_grads(model, nodes, clamps)


@eqx.filter_jit
def _hpc_grads(model, nodes, clamps):
    return eqx.filter_grad(AmortisedEnergy())(model, nodes, clamps)


def _amortised(model, equilib, amort, x, y) -> tuple[Nodes, Clamps]:
    check_model("model", model)
    depth = len(model)
    if len(amort) != depth + 1 or len(equilib) != (depth + 1 if y is None else depth):
        raise ValueError(
            f"An amortiser of {depth} layers {'without' if y is None else 'with'} a target y "
            f"needs {depth + 1} amort_activities (z_0 ... z_{depth}) and "
            f"{depth + (y is None)} equilib_activities (z_{int(y is not None)} ... z_{depth}), "
            f"got {len(amort)} and {len(equilib)}."
        )
    equilib = [data(f"equilib_activities[{i}]", z) for i, z in enumerate(equilib)]
    amort = [data(f"amort_activities[{i}]", z) for i, z in enumerate(amort)]
    return amortised_chain(equilib, amort, data("x", x), optional_data("y", y))


def amortised_chain(equilib, amort, x: Array, y: Array | None) -> tuple[Nodes, Clamps]:
    """The nodes and clamps of an amortiser's energy, in its own order."""
    targets = equilib[:-1] if y is None else [y, *equilib[:-1]]
    return [x, *amort[-2:0:-1], None], [None, *targets[::-1]]
