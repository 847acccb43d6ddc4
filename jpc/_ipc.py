from typing import Any, Unpack

import equinox as eqx
import jax
import optax
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree

from ._checks import raise_if_not_finite
from ._closures import by_contents
from ._functional import (
    Activities,
    call,
    descend_unchecked,
    layer_energies,
    learned_layers,
    make_layers,
    of_params,
    with_prediction,
)
from ._given import check_sizes, check_type
from ._init import Sizes, start_at_random
from ._learn import update
from ._options import Options, Posed, Setup, Skips, data, setup
from ._step import feedforward_loss
from ._types import Given, Layers, Nodes


def make_ipc_step(
    model: Given[Layers],
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    *,
    skip_model: Skips = None,
    activity_optim: Given[optax.GradientTransformation] = optax.sgd(0.1),
    steps: Given[int] = 20,
    key: Given[PRNGKeyArray | None] = None,
    layer_sizes: Sizes | None = None,
    activities: Activities | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    r"""One batch of training with incremental predictive coding: activities and weights move
    together, both from where they are,

    $$z \leftarrow z - \mathrm{activity\_optim}(\nabla_z F(\theta, z)), \qquad
      \theta \leftarrow \theta - \mathrm{optim}(\nabla_\theta F(\theta, z)),$$

    at every one of the steps. [`jpc.make_pc_step`][] moves the weights once, after the last.

    **Arguments:**

    - `model`, `output`, `input`, `skip_model`, `key`, `layer_sizes`, `activities`: as in
        [`jpc.make_pc_step`][].
    - `optim`, `opt_state`: an Optax optimiser of the weights and its state, see
        [`jpc.update_params`][]. It takes a step at every step of inference, so choose a smaller
        learning rate than with predictive coding, up to `steps` times smaller. Its state is kept
        from step to step and from batch to batch.
    - `activity_optim`: an Optax optimiser of the activities. Its state is new for each batch.
    - `steps`: how many steps to take.
    - `options`: see [`jpc.Options`][]. Here `reduction` is `"sum"` by default: each example
        follows its own gradient, so that `optax.sgd(0.1)` takes the same steps in a batch of any
        size, as in published work on incremental predictive coding. With `"mean"`, the default
        of the paper's calls, a batch of 64 would need `optax.sgd(6.4)` for the same steps. The
        gradient of the weights is that of the batch's mean energy either way.

    **Returns:**

    A dictionary like that of [`jpc.make_pc_step`][].

    - `model`, `skip_model`, `optim`, `opt_state`: for the next batch.
    - `loss`: of the feedforward prediction before the first step, if there is an input.
    - `activities`: after the last step.
    - `energies`: with a row for each layer, 1 to L, and a column for each step, the energies at
      the activities and the weights from which it is taken. `t_max`: the number of columns.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    result = jpc.make_ipc_step(model, optim, opt_state, y, x)
    ```
    """
    check_sizes(steps=steps)
    check_type("activity_optim", activity_optim, optax.GradientTransformation, "optax.sgd(0.1)")
    if input is None and activities is None:
        activities = start_at_random(key, layer_sizes, len(data("output", output)))
    params, chosen = (model, skip_model), {"reduction": "sum", **options}
    problem = (setup(params, chosen), params, activities, output, input)
    answer = call(_ipc_step, *problem, by_contents(activity_optim), steps, optim, opt_state)
    return answer | dict(optim=optim, t_max=steps)


def _ipc_step(setup, params, posed, activity_optim, steps, optim, opt_state):
    arrays, rest = eqx.partition(params, eqx.is_array)
    layers = make_layers(setup, posed)

    def move(carry, _):
        arrays, opt_state, nodes, node_state = carry
        params = eqx.combine(arrays, rest)
        now = Posed(layers(params), nodes, posed.clamps)
        moved, node_state = _move_nodes(setup, now, activity_optim, node_state)
        lesson = (of_params(setup, now), params, nodes, now.clamps)
        learned = descend_unchecked(*lesson, optim, opt_state)
        arrays = eqx.filter((learned["model"], learned["skip_model"]), eqx.is_array)
        return (arrays, learned["opt_state"], moved, node_state), layer_energies(setup, now)

    carry = (arrays, opt_state, posed.nodes, activity_optim.init(posed.nodes))
    (arrays, opt_state, nodes, _), energies = jax.lax.scan(move, carry, length=steps)
    model, skip_model = params = _check(eqx.combine(arrays, rest), nodes)
    return dict(
        model=model,
        skip_model=skip_model,
        opt_state=opt_state,
        loss=_loss(setup, posed),
        activities=with_prediction(layers(params), nodes, posed.clamps),
        energies=energies.T,
    )


def _move_nodes(setup: Setup, posed: Posed, optim: Any, state: PyTree) -> tuple[Nodes, PyTree]:
    grads = jax.grad(setup.energy, argnums=1)(*posed)
    scale = len(jax.tree.leaves(posed.nodes)[0]) if setup.reduction == "sum" else 1
    grads = jax.tree.map(lambda g: scale * g, grads)
    updates, state = update(optim, grads, state, posed.nodes)
    return eqx.apply_updates(posed.nodes, updates), state


def _check(params: PyTree, nodes: Nodes) -> PyTree:
    named = {f"During learning, z_{i}": z for i, z in enumerate(nodes) if z is not None}
    return raise_if_not_finite(named | learned_layers(params), params)


def _loss(setup: Setup, posed: Posed) -> Array | None:
    input, output = posed.clamps[0], posed.clamps[-1]
    return None if input is None else feedforward_loss(setup, posed.layers, input, output)[0]
