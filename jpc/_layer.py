import functools as ft
import textwrap
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ._types import Given, Layers, Number

ParamType: TypeAlias = Literal["sp", "ntp", "mupc"]


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


def apply(layer: Callable, *z: Array) -> Array:
    """`layer(*z)`, traced and differentiated once for all layers that differ only in the values
    of their arrays. This keeps the first call short for deep networks.
    """
    return _apply(*split(layer), *z)


@ft.partial(jax.jit, static_argnums=0)
def _apply(fixed, arrays, *z):
    return join(fixed, arrays)(*z)


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


def feedforward_batch(layers: Layers, batch: Array) -> list[Array]:
    """The states of a feedforward pass of a batch, each rounded as an energy's prediction of it
    is: there are no errors yet. Rounding in their place is what layers far from the output would
    learn from after a short inference.
    """
    states = []
    for layer in layers:
        batch = jax.vmap(ft.partial(apply, layer))(batch)
        batch = jax.lax.optimization_barrier(batch)  # Or XLA transposes all of the products.
        states.append(batch)
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
