"""Predictive coding in the coordinates of its errors, as calls like those of the paper. They pose
a problem of [`jpc.EPCEnergy`][] and answer it; there is no mathematics here.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, PyTree

from ._checks import checked_jit, raise_if, raise_if_not_finite, which_not_finite
from ._clamp import clamp
from ._energy import EPCEnergy
from ._functional import descend, of_params
from ._given import check_flags
from ._init import Sizes, state_shapes
from ._learn import check_state, update
from ._options import (
    Options,
    Params,
    Posed,
    Setup,
    batches,
    check_states,
    data,
    network,
    optional_data,
    problems,
    refuse_masks,
    setup,
)
from ._types import Given, Scalar

Errors = Given[Sequence[ArrayLike]]


def init_epc_errors(
    layer_sizes: Sizes,
    batch_size: Given[int],
    mode: Given[Literal["supervised", "unsupervised"]] = "supervised",
) -> list[Array]:
    r"""The errors of a feedforward pass, $e_\ell = 0$: where inference starts.

    **Arguments:**

    - `layer_sizes`: the size of each of $z_0 \dots z_L$; a shape for those of another rank.
    - `batch_size`: the number of examples.
    - `mode`: `"supervised"` for $e_1 \dots e_{L-1}$; `"unsupervised"`, where the input is
        inferred too, for $z_0, e_1 \dots e_{L-1}$. Nothing predicts $z_0$, so it is its own
        error, and starts from zeros. (There a network of `relu` layers without biases has no
        gradient: put random numbers into the first entry.)

    **Returns:**

    A list of errors of the layers that are inferred. The output is given, so it has none.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5)
    ```
    """
    shapes = state_shapes(layer_sizes, batch_size, mode)[:-1]
    return [jnp.zeros((batch_size, *shape)) for shape in shapes]


def epc_energy_fn(
    params: Params,
    errors: Errors,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    record_layers: Given[bool] = False,
    **options: Unpack[Options],
) -> Array:
    r"""The energy of a predictive coding network in the coordinates of its errors,

    $$F = \frac{1}{N} \sum_{i=1}^N \left( \sum_{\ell=1}^{L-1}
          \frac{1}{2} \lVert e_{\ell,i} \rVert^2 + \mathrm{loss}(y_i, f_L(z_{L-1,i})) \right),
          \qquad z_\ell = f_\ell(z_{\ell-1}) + e_\ell, \ z_0 = x.$$

    It is that of [`jpc.pc_energy_fn`][] at the activities $z$ that the errors make.

    **Arguments:**

    - `params`: the pair of a model and its skip connections, `(model, None)` without.
    - `errors`: $e_1 \dots e_{L-1}$, with $z_0$ first if there is no `x`, as
        [`jpc.init_epc_errors`][] makes them.
    - `y`: a batch of outputs.
    - `x`: a batch of inputs, if the input is given.
    - `record_layers`: whether to return the energy of each layer, without penalties.
    - `options`: see [`jpc.Options`][], but for `mask`, `input_mask` and `activity_decay`.

    **Returns:**

    A scalar, or an array of the `L` layers' energies in chain order.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5)
    value = jpc.epc_energy_fn(params, errors, y, x=x)
    ```
    """
    check_flags(record_layers=record_layers)
    return _call(_energy, options, params, errors, y, x, record_layers)


def _energy(setup: Setup, params: Params, posed: Posed, record_layers: bool) -> Array:
    if not record_layers:
        return EPCEnergy(setup.energy)(*posed)
    return jnp.stack(jax.tree.leaves(EPCEnergy(setup.chain).layerwise(*posed)))


def compute_epc_error_grad(
    params: Params,
    errors: Errors,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> tuple[Scalar, list[Array]]:
    """The gradient of the batch's energy in the errors, or with `reduction="sum"` that of each
    example's own energy. It goes through all layers at once, as backpropagation does.

    **Arguments:** those of [`jpc.epc_energy_fn`][].

    **Returns:**

    The energy, and gradients like the errors.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5)
    value, moves = jpc.compute_epc_error_grad(params, errors, y, x=x)
    ```
    """
    return _call(_error_grad, options, params, errors, y, x)


def _error_grad(setup: Setup, params: Params, posed: Posed) -> tuple[Scalar, list[Array]]:
    energy, grads = jax.value_and_grad(EPCEnergy(setup.energy), argnums=1)(*posed)
    scale = len(posed.clamps[-1]) if setup.reduction == "sum" else 1
    return energy, [scale * g for g in jax.tree.leaves(grads)]


def compute_epc_param_grads(
    params: Params,
    errors: Errors,
    y: Given[ArrayLike],
    *,
    x: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> Params:
    """The learning gradient: that of [`jpc.compute_pc_param_grads`][] at the activities that
    the errors make. Each layer learns from its own error, with the activities held fixed.

    It is not the derivative of [`jpc.epc_energy_fn`][] with the *errors* held fixed. That one
    goes through all later layers: without errors it is backpropagation's. Only at equilibrium
    are the two the same.

    **Arguments:** those of [`jpc.epc_energy_fn`][].

    **Returns:**

    Gradients like `params`, with `None` for what is not an array.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5)
    grads = jpc.compute_epc_param_grads(params, errors, y, x=x)
    ```
    """
    return _call(_param_grads, options, params, errors, y, x)


def _param_grads(setup: Setup, params: Params, posed: Posed) -> Params:
    energy = of_params(setup, posed, EPCEnergy(setup.energy))
    return eqx.filter_grad(energy)(params, posed.nodes, posed.clamps)


def update_epc_errors(
    params: Params,
    errors: Errors,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """One step of inference with an Optax optimiser, in the errors.

    **Arguments:**

    - `params`, `errors`, `options`: as in [`jpc.epc_energy_fn`][].
    - `optim`, `opt_state`: an Optax optimiser and its state, `optim.init(errors)` at first.
    - `output`, `input`: batches of what $z_L$ and, if it is given, $z_0$ are clamped to.

    **Returns:**

    A dictionary with the `energy` and its `grads` before the step, the new `errors`, `optim`
    and the new `opt_state`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors, sgd = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5), optax.sgd(0.1)
    result = jpc.update_epc_errors(params, errors, sgd, sgd.init(errors), y, x)
    ```
    """
    answer = _call(_update_errors, options, params, errors, output, input, optim, opt_state)
    return answer | dict(optim=optim)


def _update_errors(setup, params, posed, optim, opt_state):
    errors = jax.tree.leaves(posed.nodes)
    check_state("errors", optim, opt_state, errors)
    energy, grads = _error_grad(setup, params, posed)
    updates, opt_state = update(optim, grads, opt_state, errors)
    errors = [e + u for e, u in zip(errors, updates, strict=True)]
    errors = raise_if_not_finite({f"errors[{i}]": e for i, e in enumerate(errors)}, errors)
    return dict(energy=energy, errors=errors, grads=grads, opt_state=opt_state)


def update_epc_params(
    params: Params,
    errors: Errors,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    output: Given[ArrayLike],
    input: Given[ArrayLike | None] = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Learning: one step of an Optax optimiser along [`jpc.compute_epc_param_grads`][].

    **Arguments:**

    - `params`, `errors`, `options`: as in [`jpc.epc_energy_fn`][]; the errors are those at the
        end of inference.
    - `optim`, `opt_state`, `output`, `input`: as in [`jpc.update_params`][].

    **Returns:**

    A dictionary with the new `model` and `skip_model`, the `grads`, `optim` and the new
    `opt_state`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    errors = jpc.init_epc_errors([4, 8, 8, 2], batch_size=5)
    result = jpc.update_epc_params(params, errors, optim, opt_state, y, x)
    ```
    """
    answer = _call(_update_params, options, params, errors, output, input, optim, opt_state)
    return answer | dict(optim=optim)


def _update_params(setup, params, posed, optim, opt_state):
    energy = of_params(setup, posed, EPCEnergy(setup.energy))
    return descend(energy, params, posed.nodes, posed.clamps, optim, opt_state)


def _call(fn: Callable, options: Any, params: Params, errors: Any, output, input, *args) -> Any:
    """Calls `fn(setup, params, posed, *args)`, jitted, with the errors as nodes."""
    refuse_masks("Inference in the errors", options)
    chosen, errors = setup(params, options), batches("errors", errors)
    ends = data("output", output), optional_data("input", input)
    return _jitted(fn, chosen, params, errors, *ends, *args)


@checked_jit
def _jitted(fn, setup, params, errors, output, input, *args):
    found = problems(setup, output, input)
    found |= which_not_finite({f"errors[{i}]": e for i, e in enumerate(errors)})
    output = raise_if(found, output)
    return fn(setup, params, _pose(setup, params, errors, output, input), *args)


def _pose(setup: Setup, params: Params, errors: list, output: Array, input: Any) -> Posed:
    depth, first = len(params[0]), 0 if input is None else 1
    _check_number(len(errors), depth, first)
    layers, shapes = network(setup, params, errors[0] if input is None else input)
    chain: dict[str, Any] = {"input z_0": input} if first else {}
    chain |= {f"error of z_{i}": e for i, e in enumerate(errors, start=first)}
    check_states(chain | {f"output z_{depth}": output}, shapes)
    return Posed(layers, *clamp(errors, output.astype(shapes[-1].dtype), input))


def _check_number(number: int, depth: int, first: int) -> None:
    if depth == first:
        raise ValueError("A network of one layer has nothing to infer: give it at least two.")
    if number != depth - first:
        how, names = ("with", "e_1") if first else ("without", "z_0")
        raise ValueError(
            f"A network of {depth} layers {how} an input has {depth - first} errors, {names} ... "
            f"e_{depth - 1} (the output is given, so it has none), got {number}: "
            "jpc.init_epc_errors makes them."
        )
