"""The parts of a training step, as the paper calls them. Each poses a problem of the core and
answers it; there is no mathematics here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, PyTree

from ._checks import checked_jit, raise_if, raise_if_not_finite, which_not_finite
from ._clamp import Masked, states
from ._energy import AbstractEnergy, AmortisedEnergy
from ._given import check_count, check_flags, show
from ._inference import AbstractInference, GradientFlow, Record, check_infers
from ._inference.base import answered
from ._layer import Layer
from ._learn import check_learns, check_state, fits, take_step, update
from ._options import (
    FlowOptions,
    Options,
    Params,
    Posed,
    Setup,
    batches,
    check_states,
    data,
    input_data,
    network,
    number,
    optional_data,
    part,
    pose,
    problems,
    setup,
)
from ._types import Clamps, Given, Layers, Nodes, Number, Scalar

Activities = Given[Sequence[ArrayLike]]

_FLOW_ARGS = (
    "loss_id",
    "param_type",
    "weight_decay",
    "spectral_penalty",
    "activity_decay",
    "gamma",
    "output_energy_scaling",
    "stepsize_controller",
)


def call(
    fn: Callable, setup: Setup, params: Params, activities: Any, output: Any, input: Any, *args
) -> Any:
    """Calls `fn(setup, params, posed, *args)`, jitted, on the problem that is posed."""
    if activities is not None:
        activities = batches("activities", activities)
    output = data("output", output)
    input = None if input is None else input_data(params, input)
    return _jitted(fn, setup, params, activities, output, input, *args)


def call_at(fn: Callable, setup: Setup, params: Params, activities: Any, *args) -> Any:
    """The same at activities that must be given."""
    if activities is None:
        raise TypeError(
            "activities must be a list of arrays, as init_activities_with_ffwd makes it, got None."
        )
    return call(fn, setup, params, activities, *args)


@checked_jit
def _jitted(fn, setup, params, activities, output, input, *args):
    output, input = part(setup, "output", output), part(setup, "input", input)
    found = problems(setup, output, input)
    if activities:
        found |= which_not_finite({f"activities[{i}]": z for i, z in enumerate(activities)})
    output = raise_if(found, output)
    answer = fn(setup, params, pose(setup, params, activities, output, input), *args)
    return raise_if(found, answer)  # What is masked does not reach it.


def with_prediction(layers: Layers, nodes: Nodes, clamps: Clamps) -> list[Array]:
    """The states that are inferred, at least in part, then the prediction of the output; where
    units of the output are inferred, those.
    """
    z, free, given = states(nodes, clamps), nodes[-1], clamps[-1]
    prediction = jax.vmap(layers[-1])(z[-2])
    if isinstance(given, Masked):
        prediction = jnp.where(given.mask, prediction, free)
    inferred = [state for state, node in zip(z, nodes, strict=True) if node is not None]
    return [*(inferred if free is None else inferred[:-1]), prediction]


def pc_energy_fn(
    params: Params,
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    record_layers: Given[bool] = False,
    **options: Unpack[Options],
) -> Array:
    r"""The energy of a predictive coding network,

    $$F = \frac{1}{N} \sum_{i=1}^N \sum_{\ell=1}^L
          \frac{1}{2} \lVert z_{\ell,i} - f_\ell(z_{\ell-1,i}) \rVert^2,
          \qquad z_0 = x, \ z_L = y.$$

    **Arguments:**

    - `params`: the pair of a model and its skip connections, `(model, None)` without.
    - `activities`: $z_1 \dots z_L$, with $z_0$ first if there is no `x`, or only a part of it.
        The last one, the prediction of the output, does not matter here, except for the units
        that a `mask` leaves out.
    - `y`: a batch of outputs.
    - `x`: a batch of inputs, if the input is given.
    - `record_layers`: whether to return the energy of each layer, without penalties.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    A scalar, or an array of the `L` layers' energies in chain order.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    value = jpc.pc_energy_fn(params, activities, y, x=x)
    layers = jpc.pc_energy_fn(params, activities, y, x=x, record_layers=True)
    ```
    """
    check_flags(record_layers=record_layers)
    return call_at(_energy, setup(params, options), params, activities, y, x, record_layers)


def _energy(setup: Setup, params: Params, posed: Posed, record_layers: bool) -> Array:
    return layer_energies(setup, posed) if record_layers else setup.energy(*posed)


def layer_energies(setup: Setup, posed: Posed) -> Array:
    return jnp.stack(jax.tree.leaves(setup.chain.layerwise(*posed)))


def compute_pc_activity_grad(
    params: Params,
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> tuple[Scalar, list[Array]]:
    """The gradient of the batch's energy in the activities, or with `reduction="sum"` that of
    each example's own.

    **Arguments:** those of [`jpc.pc_energy_fn`][].

    **Returns:**

    The energy, and gradients like the activities. The gradient in the last activity, the
    prediction of the output, is zero. With masks it is zero only in the units that are given.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    value, moves = jpc.compute_pc_activity_grad(params, activities, y, x=x)
    ```
    """
    return call_at(_activity_grad, setup(params, options), params, activities, y, x)


def _activity_grad(setup: Setup, params: Params, posed: Posed) -> tuple[Scalar, list[Array]]:
    return activity_grad(setup, posed)


def activity_grad(setup: Setup, posed: Posed) -> tuple[Scalar, list[Array]]:
    energy, grads = jax.value_and_grad(setup.energy, argnums=1)(*posed)
    scale = len(jax.tree.leaves(posed.nodes)[0]) if setup.reduction == "sum" else 1
    grads = [scale * g for g in jax.tree.leaves(grads)]
    given = posed.clamps[-1]
    return energy, grads if isinstance(given, Masked) else [*grads, jnp.zeros_like(given)]


def neg_pc_activity_grad(t: Any, activities: Activities, args: Given[tuple]) -> list[Array]:
    """The vector field of the inference flow, for use with Diffrax directly:
    `diffrax.ODETerm(jpc.neg_pc_activity_grad)`.

    **Arguments:**

    - `t`: the time, which does not matter.
    - `activities`: as in [`jpc.pc_energy_fn`][].
    - `args`: `(params, y, x)`, or `(params, y, x, options)` with a dictionary of
        [`jpc.Options`][]; or, as the paper's implementation has them, `(params, y, x, loss_id,
        param_type, weight_decay, spectral_penalty, activity_decay, gamma,
        output_energy_scaling, stepsize_controller)`.

    **Returns:**

    The negative gradient of the energy in the activities.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    field = jpc.neg_pc_activity_grad(0.0, activities, (params, y, x, {}))
    ```
    """
    if not isinstance(args, tuple | list) or len(args) < 3:
        raise ValueError(f"args must be (params, y, x), with options or not, got {show(args)}.")
    params, y, x, *rest = args
    if len(args) == 3 + len(_FLOW_ARGS):
        rest = [zip(_FLOW_ARGS[:-1], rest[:-1], strict=True)]
    if len(rest) > 1 or not all(isinstance(options, Mapping | zip) for options in rest):
        raise ValueError(
            "args must be (params, y, x), (params, y, x, options) or all of (params, y, x, "
            f"{', '.join(_FLOW_ARGS)}), got {len(args)} entries."
        )
    _, grads = compute_pc_activity_grad(params, activities, y, x=x, **dict(*rest))
    return jax.tree.map(jnp.negative, grads)


def compute_pc_param_grads(
    params: Params,
    activities: Activities,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> Params:
    """The gradient of the energy in the parameters.

    **Arguments:** those of [`jpc.pc_energy_fn`][].

    **Returns:**

    Gradients like `params`, with `None` for what is not an array.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    grads, _ = jpc.compute_pc_param_grads(params, activities, y, x=x)
    ```
    """
    return call_at(_param_grads, setup(params, options), params, activities, y, x)


def _param_grads(setup: Setup, params: Params, posed: Posed) -> Params:
    return eqx.filter_grad(of_params(setup, posed))(params, posed.nodes, posed.clamps)


def of_params(setup: Setup, posed: Posed, energy: AbstractEnergy | None = None) -> Callable:
    """An energy (by default the setup's) as a function of a model and its skip connections,
    rather than of layers.
    """
    energy, layers = setup.energy if energy is None else energy, make_layers(setup, posed)
    return lambda params, nodes, clamps: energy(layers(params), nodes, clamps)


def make_layers(setup: Setup, posed: Posed) -> Callable[[Params], list[Layer]]:
    """How a model and its skip connections become layers."""
    z_0 = states(posed.nodes, posed.clamps)[0]
    return lambda params: network(setup, params, z_0)[0]


def solve_inference(
    params: Params,
    activities: Activities,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    *,
    record_iters: Given[bool] = False,
    record_every: Given[Number | None] = None,
    **options: Unpack[FlowOptions],
) -> list[Array]:
    r"""Inference: integrates the gradient flow of the energy in the activities,
    $\dot z_\ell = -\partial F / \partial z_\ell$.

    **Arguments:**

    - `params`, `activities`: as in [`jpc.pc_energy_fn`][]; the activities are the start.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.
    - `record_iters`: whether to return the start and every step.
    - `record_every`: returns the activities at multiples of this time instead.
    - `options`: see [`jpc.FlowOptions`][]; `max_t1` is 20 by default.

    **Returns:**

    Activities like those given, at the end of inference: they go straight into
    [`jpc.update_params`][]. When recorded they have a leading axis of time.

    With a `mask` the last one completes the output, `jnp.where(mask, output, activities[-1])`:
    the units that are not given have been inferred, and at equilibrium that is their prediction
    (unless an `activity_decay` holds them back). With an `input_mask` the first one is the whole
    input, completed.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), 4, 8, 3, 2, "tanh")
    x, y = jr.normal(jr.key(1), (5, 4)), jr.normal(jr.key(2), (5, 2))
    activities = jpc.init_activities_with_ffwd(model, x)
    inferred = jpc.solve_inference((model, None), activities, y, x)
    ```
    """
    check_flags(record_iters=record_iters)
    read = setup(params, options, max_t1=20.0)
    check_infers(read.inference)
    problem = (read, params, activities, output, input)
    record = choose_record(problem, record_iters, record_every)
    ends, way, length = call_at(solve, *problem, record)
    return ends if record is None else trim(way, length)


def trim(recorded: PyTree, length: Array) -> PyTree:
    """Cuts off the room that was made for more steps than there were, if that is known."""
    cut = lambda x: x if isinstance(length, Tracer) else x[: int(length)]
    return jax.tree.map(cut, recorded)


def solve(setup, params, posed, record):
    inferred = answered(setup.inference(setup.energy, *posed, record=record))
    activities = lambda nodes: with_prediction(posed.layers, nodes, posed.clamps)
    ends, way = activities(inferred.nodes), inferred.trajectory
    if way is None:
        return ends, None, None
    return ends, jax.vmap(activities)(way.values), way.length


def choose_record(problem: tuple, record: bool, every: Any) -> Record | None:
    """A record of a grid of times, or of every step with room for as many as there are."""
    if every is not None:
        return _record_every(problem[0].inference, number("record_every", every, above=0.0))
    if not record:
        return None
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(problem)):
        raise ValueError(
            "Under jit the number of steps is not known in advance, so recording every step "
            "would have to make room for all that are allowed: give record_every."
        )
    steps = int(call(_count_steps, *problem))
    return Record(length=1 << max(steps - 1, 0).bit_length())


def _record_every(inference: AbstractInference, every: Array) -> Record:
    if not isinstance(inference, GradientFlow):
        raise ValueError("record_every is a time, and only jpc.GradientFlow has one.")
    if isinstance(every, Tracer) or isinstance(t1 := inference.t1, Tracer):
        raise ValueError("Under jit record_every and max_t1 must be Python's numbers.")
    times = float(t1) / float(every)
    if not 1 <= times <= inference.max_steps:
        limits = f"at least once and at most max_steps times into max_t1, which is {t1:g}"
        raise ValueError(f"record_every must fit {limits}, got {every:g}.")
    return Record(ts=every * jnp.arange(1 + int(times + 1e-4)))


def _count_steps(setup, params, posed):
    stats = setup.inference(setup.energy, *posed).stats
    return jnp.max(stats["steps"] + stats.get("rejected", 0))


def get_t_max(activities_iters: Activities) -> int:
    """The number of entries of recorded activities: `activities[i][t_max - 1]` is the last.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    way = jpc.solve_inference(params, activities, y, x, max_t1=5, record_iters=True)
    last = way[0][jpc.get_t_max(way) - 1]
    ```
    """
    if not (way := batches("activities_iters", activities_iters)):
        raise ValueError("activities_iters has no activities.")
    return len(way[0])


def compute_infer_energies(
    params: Params,
    activities_iters: Activities,
    t_max: Given[int],
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> Array:
    """The energies of the layers during inference.

    **Arguments:**

    - `params`, `y`, `x`, `options`: as in [`jpc.pc_energy_fn`][].
    - `activities_iters`: activities with a leading axis of time, as [`jpc.solve_inference`][]
        returns them with `record_iters=True`.
    - `t_max`: how many of them, see [`jpc.get_t_max`][].

    **Returns:**

    An array with a row for each layer, in chain order, and a column for each time.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    way = jpc.solve_inference(params, activities, y, x, max_t1=5, record_iters=True)
    energies = jpc.compute_infer_energies(params, way, jpc.get_t_max(way), y, x=x)
    ```
    """
    way = batches("activities_iters", activities_iters)
    check_count("t_max", t_max)
    if t_max > get_t_max(way):
        raise ValueError(f"t_max is {t_max}, but activities_iters has {get_t_max(way)} entries.")
    way = [z[:t_max] for z in way]
    one = lambda z: pc_energy_fn(params, z, y, x=x, record_layers=True, **options)
    return jnp.stack([one([z[t] for z in way]) for t in range(get_t_max(way))], axis=1)


def update_activities(
    params: Params,
    activities: Activities,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """One step of inference with an Optax optimiser.

    **Arguments:**

    - `params`, `activities`, `options`: as in [`jpc.pc_energy_fn`][].
    - `optim`, `opt_state`: an Optax optimiser and its state, `optim.init(activities)` at first.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary with the `energy` and its `grads` before the step, the new `activities`, `optim`
    and the new `opt_state`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    named = dict(optim=optax.sgd(0.1), opt_state=optax.sgd(0.1).init(activities))
    result = jpc.update_activities(params, activities, output=y, input=x, **named)
    activities = result["activities"]
    ```
    """
    problem = (setup(params, options), params, activities, output, input)
    return call_at(_update_activities, *problem, optim, opt_state) | dict(optim=optim)


def _update_activities(setup, params, posed, optim, opt_state):
    return move(setup, posed, posed.layers, optim, opt_state)


def move(setup: Setup, posed: Posed, layers: Layers, optim: Any, opt_state: PyTree) -> dict:
    """One step of inference. The last of the layers predicts the output."""
    activities = with_prediction(layers, posed.nodes, posed.clamps)
    check_state("activities", optim, opt_state, activities)
    energy, grads = activity_grad(setup, posed)
    updates, opt_state = update(optim, grads, opt_state, activities)
    leaves, structure = jax.tree.flatten(posed.nodes)  # Maybe without the prediction.
    free = [z + u for z, u in zip(activities, updates, strict=True)][: len(leaves)]
    free = raise_if_not_finite({f"activities[{i}]": z for i, z in enumerate(free)}, free)
    moved = with_prediction(layers, jax.tree.unflatten(structure, free), posed.clamps)
    return dict(energy=energy, grads=grads, activities=moved, opt_state=opt_state)


def update_params(
    params: Params,
    activities: Activities,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
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
    activities = jpc.init_activities_with_ffwd(model, x)
    inferred = jpc.solve_inference((model, None), activities, y, x)
    learned = jpc.update_params((model, None), inferred, optim, opt_state, y, x)
    model, opt_state = learned["model"], learned["opt_state"]
    ```
    """
    problem = (setup(params, options), params, activities, output, input)
    return call_at(_update_params, *problem, optim, opt_state) | dict(optim=optim)


def _update_params(setup, params, posed, optim, opt_state):
    return descend(of_params(setup, posed), params, posed.nodes, posed.clamps, optim, opt_state)


def descend(energy, params: Params, nodes, clamps, optim, opt_state, name: str = "model") -> dict:
    """One step of learning of a model and its skip connections, checked."""
    new = descend_unchecked(energy, params, nodes, clamps, optim, opt_state, name)
    params = new["model"], new["skip_model"]
    model, skip_model = raise_if_not_finite(learned_layers(params, name), params)
    return new | dict(model=model, skip_model=skip_model)


def descend_unchecked(
    energy, params: Params, nodes, clamps, optim, opt_state, name: str = "model"
) -> dict:
    """The same, whatever the numbers are. The optimiser's state may be that of the bare model."""
    model, skip_model = params
    check_learns(name, params)
    bare = skip_model is None and not fits(optim, opt_state, params)
    whole = name if skip_model is None else "(model, skip_model)"
    check_state(whole, optim, opt_state, model if bare else params)
    pair = (lambda model: (model, None)) if bare else (lambda params: params)
    of_pair = lambda learned, nodes, clamps: energy(pair(learned), nodes, clamps)
    learned = take_step(of_pair, model if bare else params, nodes, clamps, optim, opt_state)
    model, skip_model = pair(learned.params)
    new = dict(model=model, skip_model=skip_model, opt_state=learned.opt_state)
    return new | dict(grads=pair(learned.grads))


def learned_layers(params: Params, name: str = "model") -> dict[str, PyTree]:
    """For a message that names a layer."""
    layers = enumerate(zip(*filter(None, params), strict=True), start=1)
    return {f"After learning, layer {i} of {name}": layer for i, layer in layers}


def hpc_energy_fn(
    model: Given[Layers],
    equilib_activities: Activities,
    amort_activities: Activities,
    x: Given[ArrayLike],
    y: Given[ArrayLike | None] = None,
    record_layers: Given[bool] = False,
) -> Array:
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

    **Example**, after [these lines](index.md#the-examples):

    ```python
    guesses = jpc.init_activities_with_amort(back, model, y)
    inferred = jpc.solve_inference(params, activities, y, x, inference=jpc.Descent(0.1, 20))
    value = jpc.hpc_energy_fn(back, inferred, guesses, y, x)
    ```
    """
    check_flags(record_layers=record_layers)
    chain = (equilib_activities, amort_activities, x, y)
    energies = jnp.stack(_call_amortised(AmortisedEnergy().layerwise, model, *chain))
    return energies if record_layers else jnp.sum(energies)


def compute_hpc_param_grads(
    model: Given[Layers],
    equilib_activities: Activities,
    amort_activities: Activities,
    x: Given[ArrayLike],
    y: Given[ArrayLike | None] = None,
) -> PyTree:
    """The gradient of an amortiser's energy in its parameters.

    **Arguments:** those of [`jpc.hpc_energy_fn`][].

    **Returns:**

    Gradients like `model`, with `None` for what is not an array.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    guesses = jpc.init_activities_with_amort(back, model, y)
    inferred = jpc.solve_inference(params, activities, y, x, inference=jpc.Descent(0.1, 20))
    grads = jpc.compute_hpc_param_grads(back, inferred, guesses, y, x)
    ```
    """
    chain = (equilib_activities, amort_activities, x, y)
    return _call_amortised(eqx.filter_grad(AmortisedEnergy()), model, *chain)


def _call_amortised(fn: Callable, model, equilib, amort, x, y) -> Any:
    """Calls `fn(model, nodes, clamps)`, jitted, on the chain of an amortiser."""
    options = setup((model, None), {})
    equilib, amort = batches("equilib_activities", equilib), batches("amort_activities", amort)
    chain = (equilib, amort, data("x", x), optional_data("y", y))
    return _jitted_amortised(fn, options, list(model), *chain)


@checked_jit
def _jitted_amortised(fn, setup, model, equilib, amort, x, y):
    depth = len(model)
    if len(amort) != depth + 1 or len(equilib) != (depth + 1 if y is None else depth):
        raise ValueError(
            f"An amortiser of {depth} layers needs {depth + 1} amort_activities, z_0 ... "
            f"z_{depth}, and as many equilib_activities (without z_0 if y is given), got "
            f"{len(amort)} and {len(equilib)}."
        )
    _, shapes = network(setup, (model, None), x)
    nodes, clamps = amortised_chain(equilib, amort, x, y)
    for name, targets in {
        "amort_activities": nodes[1:-1],
        "equilib_activities": clamps[1:],
    }.items():
        chain = {"x": x} | {f"{name} z_{depth - i}": z for i, z in enumerate(targets, start=1)}
        check_states(chain, shapes[: len(chain)])
        nodes = raise_if_not_finite(chain, nodes)
    return fn(model, nodes, clamps)


def amortised_chain(equilib, amort, x: Array, y: Array | None) -> tuple[Nodes, Clamps]:
    """The nodes and clamps of an amortiser's energy, in its own order."""
    targets = equilib[:-1] if y is None else [y, *equilib[:-1]]
    return [x, *amort[-2:0:-1], None], [None, *targets[::-1]]
