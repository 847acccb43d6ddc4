"""Predictive dendrites as the paper's implementation calls them."""

from typing import Any

import optax
from jaxtyping import Array, ArrayLike, PyTree

from ._bpc import (
    compute_bpc_activity_grad,
    compute_bpc_param_grads,
    update_bpc_activities,
    update_bpc_params,
)
from ._bpc_options import WEIGHTS, weight
from ._energy import BPCEnergy
from ._functional import Activities
from ._options import number
from ._types import Given, Layers, Number, Scalar

# Of the original's predictive dendrites, what is not a `BPCEnergy`.
_EXTRAS = (
    "include_next_forward_error",
    "include_previous_backward_error",
    "lateral_gamma",
    "lateral_model",
    "lateral_opt_state",
    "lateral_optim",
    "projection_matrix_next",
    "projection_matrix_next_opt_states",
    "projection_matrix_next_optim",
    "projection_matrix_prev",
    "projection_matrix_prev_opt_state",
    "projection_matrix_prev_optim",
    "spectral_penalty",
)
# These say what to do with what is not there.
_WITHOUT_MEANING = (
    "stop_gradient_on_extra_errors",
    "update_projection_matrix_next",
    "update_projection_matrix_prev",
)


def compute_pdm_activity_grad(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    y: Given[ArrayLike],
    x: Given[ArrayLike | None],
    *,
    bpc_terms_factor: Given[Number] = 0.0,
    **options: Any,
) -> tuple[Scalar, list[Array]]:
    """[`jpc.compute_bpc_activity_grad`][] with predictive dendrites: of what a state predicts,
    only a part of the errors reaches it.

    **Arguments:** those of [`jpc.bpc_energy_fn`][], and

    - `bpc_terms_factor`: that part, the `source_gradient` of a [`jpc.BPCEnergy`][].
    - `options`: see [`jpc.BPCOptions`][]. The lateral and the projected errors of the paper's
        implementation are not supported.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    bottom_up = back[::-1]
    named = dict(bpc_terms_factor=0.1)  # A tenth of an error reaches the state that predicted.
    value, moves = jpc.compute_pdm_activity_grad(model, bottom_up, activities, y, x, **named)
    ```
    """
    options = _dendrites(options, bpc_terms_factor)
    return compute_bpc_activity_grad(
        top_down_model, bottom_up_model, activities, y, x=x, **options
    )


def compute_pdm_param_grads(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    y: Given[ArrayLike],
    x: Given[ArrayLike | None],
    **options: Any,
) -> tuple[PyTree, PyTree]:
    """The same as [`jpc.compute_bpc_param_grads`][]: predictive dendrites only change inference.

    **Arguments:** those of [`jpc.compute_pdm_activity_grad`][], without `bpc_terms_factor`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    forwards, backwards = jpc.compute_pdm_param_grads(model, back[::-1], activities, y, x)
    ```
    """
    options = _dendrites(options)
    return compute_bpc_param_grads(top_down_model, bottom_up_model, activities, y, x=x, **options)


def update_pdm_activities(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None],
    *,
    bpc_terms_factor: Given[Number] = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """[`jpc.update_bpc_activities`][] with predictive dendrites.

    **Arguments:** its own, and those of [`jpc.compute_pdm_activity_grad`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    sgd, bottom_up = optax.sgd(0.1), back[::-1]
    state = sgd.init(activities)
    result = jpc.update_pdm_activities(model, bottom_up, activities, sgd, state, y, x)
    ```
    """
    options = _dendrites(options, bpc_terms_factor)
    problem = (top_down_model, bottom_up_model, activities, optim, opt_state, output, input)
    return update_bpc_activities(*problem, **options)


def update_pdm_params(
    top_down_model: Given[Layers],
    bottom_up_model: Given[Layers],
    activities: Activities,
    top_down_optim: Given[optax.GradientTransformation],
    bottom_up_optim: Given[optax.GradientTransformation],
    top_down_opt_state: PyTree,
    bottom_up_opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None],
    **options: Any,
) -> dict[str, Any]:
    """The same as [`jpc.update_bpc_params`][]: predictive dendrites only change inference.

    **Arguments:** its own, and the options of [`jpc.compute_pdm_param_grads`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    models = (model, back[::-1])
    states = [optim.init(eqx.filter(m, eqx.is_array)) for m in models]
    result = jpc.update_pdm_params(*models, activities, optim, optim, *states, y, x)
    ```
    """
    optims = (top_down_optim, bottom_up_optim, top_down_opt_state, bottom_up_opt_state)
    problem = (top_down_model, bottom_up_model, activities, *optims, output, input)
    return update_bpc_params(*problem, **_dendrites(options))


def _dendrites(options: dict[str, Any], factor: Any = 1.0) -> Any:
    """Their options as those of bidirectional predictive coding."""
    for name in _EXTRAS:
        if not _absent(options.get(name)):
            raise ValueError(
                f"{name} is not supported: of predictive dendrites there are bpc_terms_factor and "
                "the weights of the two directions. Other errors and penalties are terms of an "
                "energy of your own, for jpc.make_step."
            )
    if "energy" in options:
        raise ValueError("Give an energy to the bpc calls, with its source_gradient.")
    known = {name: options[name] for name in options if name not in _EXTRAS + _WITHOUT_MEANING}
    weights = [weight(name, known.pop(name, 1.0)) for name in WEIGHTS]
    factor = number("bpc_terms_factor", factor, least=0.0, most=1.0)
    return known | dict(energy=BPCEnergy(*weights, source_gradient=factor))


def _absent(value: Any) -> bool:
    """Whether it is what the original takes for nothing, which may be written out."""
    return value is None or (isinstance(value, bool | int | float) and not value)
