import functools as ft
import textwrap
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from ._types import Given, Layers, Number

ParamType: TypeAlias = Literal["sp", "ntp", "mupc"]


def _identity(z: Array) -> Array:
    return z


def _no_skip(z: Array) -> float:
    del z
    return 0.0


class Layer(eqx.Module):
    r"""One prediction of a network,

    $$z \mapsto a \, f(z) + s(z).$$

    Scalings and skip connections belong here, so that an energy only ever calls
    `layer(z)`.

    **Arguments:**

    - `fn`: any callable on one example: an Equinox module, a function.
    - `skip`: the skip connection, a callable too. None by default.
    - `scale`: the number that multiplies `fn`. It is not learned.
    """

    fn: Callable
    skip: Callable = _no_skip
    scale: Number = 1.0

    def __call__(self, z: Array) -> Array:
        return jax.lax.stop_gradient(self.scale) * self.fn(z) + self.skip(z)


def apply(layer: Callable, z: Array) -> Array:
    """`layer(z)`, traced and differentiated once for all layers that differ only in the values
    of their arrays. This keeps the first call short for deep networks.
    """
    return _apply(*split(layer), z)


@ft.partial(jax.jit, static_argnums=0)
def _apply(fixed, arrays, z):
    return join(fixed, arrays)(z)


def split(layer: Callable) -> tuple[Hashable, list[Array | None]]:
    """A layer's arrays, and all the rest of it."""
    leaves, structure = jax.tree.flatten(layer)
    arrays = [leaf if eqx.is_array(leaf) else None for leaf in leaves]
    return (structure, tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)), arrays


def join(fixed: Any, arrays: list[Array | None]) -> Callable:
    """The opposite of `split`."""
    structure, static = fixed
    leaves = [b if a is None else a for a, b in zip(arrays, static, strict=True)]
    return jax.tree.unflatten(structure, leaves)


def feedforward(layers: Layers, z: Array) -> list[Array]:
    r"""The states $z_1 \dots z_L$ of a feedforward pass from $z_0$, for one example."""
    states = []
    for layer in layers:
        z = apply(layer, z)
        states.append(z)
    return states


def parameterise(
    model: Layers,
    skip_model: Sequence[Callable | None] | None = None,
    *,
    fan_ins: Sequence[int],
    param_type: Given[ParamType] = "sp",
    gamma: Number = 1.0,
) -> list[Layer]:
    r"""Gives each layer of a network its skip connection and its scaling,

    | | first | hidden | last |
    |---|---|---|---|
    | `"sp"` | $1$ | $1$ | $1/\gamma$ |
    | `"ntp"` | $D^{-1/2}$ | $N^{-1/2}$, with skips $(NL)^{-1/2}$ | $N^{-1/2}/\gamma$ |
    | `"mupc"` | $D^{-1/2}$ | $N^{-1/2}$, with skips $(NL)^{-1/2}$ | $N^{-1}/\gamma$ |

    where $D$ and $N$ are the sizes of the state that enters the layer.

    **Arguments:**

    - `model`: the layers, callables on one example.
    - `skip_model`: one skip connection per layer, `None` where there is none.
    - `fan_ins`: the size of the state that enters each layer.
    - `param_type`, `gamma`: as in the table.

    **Returns:**

    A list of [`jpc.Layer`][]s, the parameters that an energy takes.
    """
    depth = len(model)
    skips = [None] * depth if skip_model is None else skip_model
    spread = depth if any(skip is not None for skip in skips) else 1
    scales: list[Number] = [1.0] * depth
    if choice("param_type", param_type, get_args(ParamType)) != "sp":
        exponent = {"ntp": -0.5, "mupc": -1.0}[param_type]
        first, *hidden, last = fan_ins
        scales = [first**-0.5, *((n * spread) ** -0.5 for n in hidden), last**exponent]
    scales[-1] = scales[-1] / gamma
    return [
        Layer(fn, _no_skip if skip is None else skip, scale)
        for fn, skip, scale in zip(model, skips, scales, strict=True)
    ]


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": _identity,
    "tanh": jnp.tanh,
    "hard_tanh": jax.nn.hard_tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": jax.nn.gelu,
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
}


def get_act_fn(name: Given[str]) -> Callable[[Array], Array]:
    """The activation function of that name: `linear`, `tanh`, `hard_tanh`, `relu`,
    `leaky_relu`, `gelu`, `selu` or `silu`.
    """
    return _ACTIVATIONS[choice("activation function", name, tuple(_ACTIVATIONS))]


def show(value: Any) -> str:
    """A value in an error message."""
    return textwrap.shorten(repr(value), 80, placeholder=" ...")


def choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"Unknown {name} {show(value)}: choose from {listed}.")
    return value


def check_sizes(**sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"Sizes must be positive integers, got {name}={show(size)}.")


def split_key(key: Any, num: int) -> Array:
    try:
        return jr.split(key, num)
    except (TypeError, ValueError):
        raise TypeError(f"key must be a single jax.random.key(seed), got {show(key)}.") from None


def _linear(
    key: PRNGKeyArray, fan_in: int, fan_out: int, use_bias: bool, param_type: ParamType
) -> eqx.nn.Linear:
    linear = eqx.nn.Linear(fan_in, fan_out, use_bias, key=key)
    if param_type != "mupc":
        return linear
    weight = jr.normal(key, (fan_out, fan_in), linear.weight.dtype)
    linear = eqx.tree_at(lambda m: m.weight, linear, weight)
    return eqx.tree_at(lambda m: m.bias, linear, jnp.zeros(fan_out)) if use_bias else linear


def make_mlp(
    key: Given[PRNGKeyArray],
    input_dim: Given[int],
    width: Given[int],
    depth: Given[int],
    output_dim: Given[int],
    act_fn: Given[str | Callable[[Array], Array]],
    use_bias: Given[bool] = False,
    param_type: Given[ParamType] = "sp",
) -> list[eqx.nn.Sequential]:
    r"""A multi-layer perceptron in layers that predictive coding can use,
    $f_\ell(z_{\ell-1}) = W_\ell \phi(z_{\ell-1})$ with $\phi$ the identity for $\ell = 1$.

    **Arguments:**

    - `key`: a `jax.random.key` for the weights.
    - `input_dim`, `width`, `output_dim`: the sizes of $z_0$, of the hidden states, of $z_L$.
    - `depth`: the number $L$ of weight matrices, so $L - 1$ hidden states.
    - `act_fn`: the name of an activation function (see [`jpc.get_act_fn`][]), or a function.
    - `use_bias`: whether the layers have biases.
    - `param_type`: `"mupc"` draws the weights from $N(0, 1)$; otherwise they are those of
        `equinox.nn.Linear`. The scalings are applied by the functions that take
        `param_type`, not here.

    **Returns:**

    A list of `depth` layers.
    """
    check_sizes(input_dim=input_dim, width=width, depth=depth, output_dim=output_dim)
    choice("use_bias", use_bias, (False, True))
    choice("param_type", param_type, get_args(ParamType))
    act_fn = act_fn if callable(act_fn) else get_act_fn(act_fn)
    sizes = [input_dim, *[width] * (depth - 1), output_dim]
    acts = [_identity, *[act_fn] * (depth - 1)]
    return [
        eqx.nn.Sequential([eqx.nn.Lambda(act), _linear(k, n, m, use_bias, param_type)])
        for k, act, n, m in zip(split_key(key, depth), acts, sizes[:-1], sizes[1:], strict=True)
    ]


def make_skip_model(depth: Given[int]) -> list[eqx.nn.Lambda | None]:
    """One-layer skip connections for a network of `depth` layers: the identity for every
    layer but the first and the last.
    """
    check_sizes(depth=depth)
    skips = [eqx.nn.Lambda(_identity) for _ in range(depth)]
    return [skip if 0 < i < depth - 1 else None for i, skip in enumerate(skips)]
