r"""Deep linear networks, whose inference has a closed form.

Seen from the input, the states of a linear network are a Gaussian chain: before the output is
known, $z_\ell$ has a mean $m_\ell$ and a covariance $P_\ell$, which go from layer to layer as in
a Kalman filter. At the last layer $P_L$ is the rescaling $S$ of the equilibrium energy. Matrices
are taken as the Jacobians of the layers, so that scalings, skip connections and any kind of
linear layer are included.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._checks import checked_jit
from .._energy import SpectralPenalty, WeightDecay
from .._functional import call, descend, with_prediction
from .._given import check_flags, check_model
from .._layer import Layer, ParamType
from .._networks import make_skip_model
from .._options import Options, Params, Setup, batches, data, network, number, refuse_masks, setup
from .._types import Clamps, Given, Layers, Number, Scalar

Matrix = Float[Array, "_ _"]


class _Linear(eqx.Module):
    """What the options say of a linear network."""

    setup: Setup
    precision: Array
    decay: Array
    penalties: tuple[WeightDecay, SpectralPenalty]


def _linear(params: Params, options: Options) -> _Linear:
    if "energy" in options or options.get("loss_id", options.get("loss", "mse")) != "mse":
        raise ValueError(
            "The closed form is that of squared errors: leave out energy and loss_id."
        )
    refuse_masks("The closed form", options)
    amount = lambda name: number(name, options.get(name, 0.0), least=0.0)
    return _Linear(
        setup(params, options),
        number("output_energy_scaling", options.get("output_energy_scaling", 1.0), above=0.0),
        amount("activity_decay"),
        (WeightDecay(amount("weight_decay")), SpectralPenalty(amount("spectral_penalty"))),
    )


def _matrices(linear: _Linear, params: Params, x: Array) -> tuple[list[Layer], list[Matrix]]:
    layers, states = network(linear.setup, params, x)
    if any(len(state.shape) != 1 for state in states):
        raise ValueError("The closed form needs layers from vectors to vectors.")
    zeros = [jnp.zeros(state.shape, x.dtype) for state in states[:-1]]
    matrices = [jax.jacfwd(layer)(zero) for layer, zero in zip(layers, zeros, strict=True)]
    return layers, _refuse_nonlinear(layers, matrices)


def _refuse_nonlinear(layers: list[Layer], matrices: list[Matrix]) -> list[Matrix]:
    def gap(layer, w):
        z = 10 * jnp.cos(jnp.arange(w.shape[1], dtype=w.dtype))  # Far enough to saturate.
        change = jax.vmap(layer)(zs := jnp.stack([z, -z])) - layer(jnp.zeros_like(z))[None]
        return ~(jnp.max(jnp.abs(change - zs @ w.T)) <= 1e-3 * (1 + jnp.max(jnp.abs(change))))

    def shift(layer, w):
        return jnp.any(layer(jnp.zeros(w.shape[1], w.dtype)) != 0)

    found = {}
    for i, (layer, w) in enumerate(zip(layers, matrices, strict=True), start=1):
        no = f"Layer {i} is not linear (or finite), so there is no closed form"
        found[f"{no}: use act_fn='linear'."] = gap(layer, w)
        biased = f"Layer {i} has a bias, and the closed form is that of networks without"
        found[f"{biased}: use use_bias=False."] = shift(layer, w)
    messages, bad = list(found), jnp.array(list(found.values()))
    return eqx.branched_error_if(matrices, jnp.any(bad), jnp.argmax(bad), messages)


def _closed_form(linear: _Linear, params: Params, clamps: Clamps) -> tuple[Scalar, Matrix]:
    """The equilibrium energy and the rescaling, by the recursion of the module's docstring."""
    x, y = clamps[0], clamps[-1]
    layers, matrices = _matrices(linear, params, x)
    eye = lambda n: jnp.eye(n, dtype=matrices[0].dtype)
    energy = sum(penalty.terms(params, [], []) for penalty in linear.penalties)
    mean, cov = jax.vmap(layers[0])(x), eye(matrices[0].shape[0])
    for layer, w in zip(layers[1:], matrices[1:], strict=True):
        # The decay of this state is an observation of zero with precision c.
        shrink = jnp.linalg.inv(eye(len(cov)) + linear.decay * cov)
        energy += 0.5 * linear.decay * _mean_form(shrink, mean)
        mean, cov = jax.vmap(layer)(mean @ shrink.T), w @ (shrink @ cov) @ w.T
        cov += eye(len(cov)) / (linear.precision if layer is layers[-1] else 1.0)
    return energy + 0.5 * _mean_form(jnp.linalg.inv(cov), y - mean), cov


def _mean_form(matrix: Matrix, vectors: Array) -> Scalar:
    return jnp.mean(jnp.einsum("bi,ij,bj->b", vectors, matrix, vectors))


def _call(fn: Callable, params: Params, x: Any, y: Any, options: Options, *args) -> Any:
    """Calls `fn(setup, params, posed, linear, *args)`, jitted."""
    linear = _linear(params, options)
    return call(fn, linear.setup, params, None, data("y", y), data("x", x), linear, *args)


def linear_equilib_energy(
    params: Params,
    x: Given[ArrayLike],
    y: Given[ArrayLike],
    *,
    return_rescaling: Given[bool] = False,
    **options: Unpack[Options],
) -> Scalar | tuple[Scalar, Matrix]:
    r"""The energy of a deep linear network at the equilibrium of inference,

    $$F^* = \frac{1}{2N} \sum_{i=1}^N r_i^T S^{-1} r_i, \qquad
      r_i = y_i - W_{L:1} x_i, \qquad S = I + \sum_{\ell=2}^L W_{L:\ell} W_{L:\ell}^T.$$

    **Arguments:**

    - `params`: the pair of a model and its skip connections, `(model, None)` without.
    - `x`, `y`: batches of inputs and outputs.
    - `return_rescaling`: whether to return $S$ too.
    - `options`: see [`jpc.Options`][]. An output precision $p$ makes the first term of $S$
        $I/p$. Activity decay is included.

    **Returns:**

    A scalar, or a pair of it and $S$.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    linear = jpc.make_mlp(jr.key(4), 4, 8, 3, 2, "linear")
    value = jpc.linear_equilib_energy((linear, None), x, y)
    ```
    """
    check_flags(return_rescaling=return_rescaling)
    energy, rescaling = _call(_equilibrium, params, x, y, options)
    return (energy, rescaling) if return_rescaling else energy


def _equilibrium(setup, params, posed, linear) -> tuple[Scalar, Matrix]:
    return _closed_form(linear, params, posed.clamps)


def compute_linear_equilib_rescaling(
    params: Params, x: Given[ArrayLike], **options: Unpack[Options]
) -> Matrix:
    """The rescaling $S$ of [`jpc.linear_equilib_energy`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    linear = jpc.make_mlp(jr.key(4), 4, 8, 3, 2, "linear")
    S = jpc.compute_linear_equilib_rescaling((linear, None), x)
    ```
    """
    x = data("x", x)
    _, states = network(setup(params, {}), params, x)
    y = jnp.zeros((len(x), *states[-1].shape), x.dtype)
    return _call(_equilibrium, params, x, y, options)[1]


def compute_linear_equilib_energy_grads(
    params: Params, x: Given[ArrayLike], y: Given[ArrayLike], **options: Unpack[Options]
) -> Params:
    """The gradient of [`jpc.linear_equilib_energy`][] in the parameters: what learning with
    perfect inference follows. Gradients like `params`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    linear = jpc.make_mlp(jr.key(4), 4, 8, 3, 2, "linear")
    grads = jpc.compute_linear_equilib_energy_grads((linear, None), x, y)
    ```
    """
    return _call(_grads, params, x, y, options)


def _grads(setup, params, posed, linear) -> Params:
    return eqx.filter_grad(lambda params: _closed_form(linear, params, posed.clamps)[0])(params)


def update_linear_equilib_energy_params(
    params: Params,
    optim: Given[optax.GradientTransformation],
    opt_state: PyTree,
    x: Given[ArrayLike],
    y: Given[ArrayLike],
    **options: Unpack[Options],
) -> dict[str, Any]:
    """One step of an Optax optimiser on [`jpc.linear_equilib_energy`][].

    **Arguments:** those of [`jpc.linear_equilib_energy`][] and [`jpc.update_params`][].

    **Returns:**

    The dictionary of [`jpc.update_params`][].

    **Example**, after [these lines](index.md#the-examples):

    ```python
    linear = jpc.make_mlp(jr.key(4), 4, 8, 3, 2, "linear")
    state = optim.init(eqx.filter(linear, eqx.is_array))
    result = jpc.update_linear_equilib_energy_params((linear, None), optim, state, x, y)
    ```
    """
    return _call(_update, params, x, y, options, optim, opt_state) | dict(optim=optim)


def _update(setup, params, posed, linear, optim, opt_state) -> dict[str, Any]:
    energy = lambda params, nodes, clamps: _closed_form(linear, params, clamps)[0]
    return descend(energy, params, posed.nodes, posed.clamps, optim, opt_state)


def compute_linear_activity_hessian(
    Ws: Given[Sequence[ArrayLike]],
    *,
    use_skips: Given[bool] = False,
    param_type: Given[ParamType] = "sp",
    activity_decay: Given[Number | bool] = False,
    diag: Given[bool] = True,
    off_diag: Given[bool] = True,
    gamma: Given[Number] = 1.0,
    output_energy_scaling: Given[Number] = 1.0,
) -> Matrix:
    r"""The Hessian of one example's energy in the activities $z_1 \dots z_{L-1}$ of a deep
    linear network, in blocks

    $$H_{\ell\ell} = (1 + c) I + p_{\ell+1} W_{\ell+1}^T W_{\ell+1}, \qquad
      H_{\ell+1,\ell} = -W_{\ell+1}.$$

    **Arguments:**

    - `Ws`: the weight matrices $W_1 \dots W_L$.
    - `use_skips`, `param_type`, `gamma`: the skip connections and scalings of the layers.
    - `activity_decay`: $c$, a coefficient (`True` is 1).
    - `diag`, `off_diag`: whether to keep the diagonal blocks, and the others.
    - `output_energy_scaling`: $p_L$; all other precisions are 1.

    **Returns:**

    A symmetric matrix, its blocks in chain order.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    weights = [jnp.array([[0.5]]), jnp.array([[2.0]])]
    curvature = jpc.compute_linear_activity_hessian(weights)[0, 0]  # 5.0
    ```
    """
    check_flags(use_skips=use_skips, diag=diag, off_diag=off_diag)
    Ws = batches("Ws", Ws)
    for i, W in enumerate(Ws):
        if W.ndim != 2 or (i and W.shape[1] != Ws[i - 1].shape[0]):
            raise ValueError(
                f"Ws[{i}] has shape {W.shape}: the matrices must chain, each as wide as the one "
                "before it is high."
            )
    if len(Ws) < 2:
        raise ValueError("A network of one layer has no activities to infer.")
    model = [jax.tree_util.Partial(jnp.matmul, W) for W in Ws]
    decay = float(activity_decay) if isinstance(activity_decay, bool) else activity_decay
    options = Options(
        param_type=param_type,
        gamma=gamma,
        activity_decay=decay,
        output_energy_scaling=output_energy_scaling,
    )
    params = (model, make_skip_model(len(model)) if use_skips else None)
    any_input = Ws[0][:1]
    return _hessian(_linear(params, options), params, any_input, diag, off_diag)


@checked_jit
def _hessian(linear, params, x, diag=True, off_diag=True) -> Matrix:
    _, (_, *matrices) = _matrices(linear, params, x)
    precisions = [1.0] * (len(matrices) - 1) + [linear.precision]

    def block(i, j):
        w = matrices[min(i, j)]
        if i == j and diag:
            eye = jnp.eye(w.shape[1], dtype=w.dtype)
            return (1.0 + linear.decay) * eye + precisions[i] * w.T @ w
        if abs(i - j) == 1 and off_diag:
            return -w if i > j else -w.T
        return jnp.zeros((matrices[i].shape[1], matrices[j].shape[1]), w.dtype)

    return jnp.block([[block(i, j) for j in range(len(matrices))] for i in range(len(matrices))])


def compute_linear_activity_solution(
    model: Given[Layers],
    x: Given[ArrayLike],
    y: Given[ArrayLike],
    *,
    use_skips: Given[bool] = False,
    **options: Unpack[Options],
) -> list[Array]:
    r"""The activities of a deep linear network at the equilibrium of inference,
    $z^* = -H^{-1} \nabla_z F(0)$.

    **Arguments:**

    - `model`: linear layers.
    - `x`, `y`: batches of inputs and outputs.
    - `use_skips`: whether there are one-layer skip connections.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    Activities $z_1 \dots z_L$ as [`jpc.solve_inference`][] returns them: the last one is the
    prediction of the output.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    linear = jpc.make_mlp(jr.key(4), 4, 8, 3, 2, "linear")
    hidden = jpc.compute_linear_activity_solution(linear, x, y)
    ```
    """
    check_flags(use_skips=use_skips)
    check_model("model", model)
    params = (model, make_skip_model(len(model)) if use_skips else None)
    return _call(_solution, params, x, y, options)


def _solution(setup, params, posed, linear) -> list[Array]:
    layers, nodes, clamps = posed
    x = clamps[0]
    hessian = _hessian(linear, params, x)
    energy = lambda nodes: len(x) * setup.energy(layers, nodes, clamps)
    grads = jax.grad(energy)(jax.tree.map(jnp.zeros_like, nodes))
    flat = -jnp.linalg.solve(hessian, jnp.concatenate(jax.tree.leaves(grads), axis=1).T).T
    _, unravel = ravel_pytree(jax.tree.map(lambda z: z[0], nodes))
    return with_prediction(layers, jax.vmap(unravel)(flat), clamps)
