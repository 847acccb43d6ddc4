import contextlib
import functools as ft
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._fixed import join, split
from ._given import (
    check_callable,
    check_layer,
    check_model,
    check_number,
    check_sizes,
    choice,
    show,
)
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

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layer = jpc.Layer(model[1], skip=lambda z: z, scale=0.5)
    after = layer(activities[0][0]) - 0.5 * model[1](activities[0][0])
    difference = jnp.max(jnp.abs(after - activities[0][0]))  # 0.0
    ```
    """

    fn: Given[Callable]
    skip: Given[Callable] = _no_skip
    scale: Given[Number] = 1.0

    def __check_init__(self):
        check_callable("fn", self.fn, "eqx.nn.Linear(...)")
        check_callable("skip", self.skip, "eqx.nn.Identity()")
        check_layer("fn", self.fn)
        check_layer("skip", self.skip)
        check_number("scale", self.scale)

    def __call__(self, z: Array) -> Array:
        return jax.lax.stop_gradient(self.scale) * self.fn(z) + self.skip(z)


def apply(layer: Callable, *z: Array, name: str = "A layer") -> Array:
    """`layer(*z)`, traced and differentiated once for all layers that differ only in the values
    of their arrays. This keeps the first call short for deep networks. An error tells its name.
    """
    try:
        return _apply(*split(layer), *z)
    except UNTRACEABLE as error:
        raise TypeError(f"{name} {NEEDS_NUMBERS}") from error
    except (TypeError, ValueError) as error:
        shapes = " and ".join(str(jnp.shape(state)) for state in z)
        enters = f"what enters it, of shape {shapes} for one example" if z else "no parents"
        why = str(error).partition("\n")[0]
        raise ValueError(f"{name} cannot take {enters}: {why}") from error


@ft.partial(jax.jit, static_argnums=0)
def _apply(fixed, arrays, *z):
    return join(fixed, arrays)(*z)


UNTRACEABLE = jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError
NEEDS_NUMBERS = (
    "needs numbers that are not known when it is compiled: write it with jax.numpy, with "
    "jnp.where for if, and without float() and int()."
)


@contextlib.contextmanager
def traceable(name: str) -> Iterator[None]:
    """Around the call of a function of somebody's own that is compiled."""
    try:
        yield
    except UNTRACEABLE as error:
        raise TypeError(f"{name} {NEEDS_NUMBERS}") from error


def feedforward(layers: Given[Layers], z: Given[Array]) -> list[Array]:
    r"""The states $z_1 \dots z_L$ of a feedforward pass from $z_0$, for one example.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    *hidden, prediction = jpc.feedforward(model, x[0])  # Of one example.
    ```
    """
    check_model("layers", layers)
    states = []
    for i, layer in enumerate(layers, start=1):
        z = apply(layer, z, name=f"Layer {i}")
        states.append(z)
    return states


def feedforward_batch(layers: Given[Layers], batch: Given[Array]) -> list[Array]:
    """The states of a feedforward pass of a batch. Each is rounded in the same way as its
    prediction in an energy, so that there are no errors before inference begins. Otherwise layers
    far from the output would learn from rounding after a short inference.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    prediction = jpc.feedforward_batch(model, x)[-1]
    ```
    """
    check_model("layers", layers)
    if not (isinstance(batch, jax.Array | np.ndarray) and batch.ndim):
        raise TypeError(f"batch must be an array with the examples first, got {show(batch)}.")
    states = []
    for i, layer in enumerate(layers, start=1):
        batch = jax.vmap(ft.partial(apply, layer, name=f"Layer {i}"))(batch)
        batch = jax.lax.optimization_barrier(batch)  # Or XLA transposes all of the products.
        states.append(batch)
    return states


def parameterise(
    model: Given[Layers],
    skip_model: Given[Sequence[Callable | None] | None] = None,
    *,
    fan_ins: Given[Sequence[int]],
    param_type: Given[ParamType] = "sp",
    gamma: Given[Number] = 1.0,
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

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = jpc.parameterise(model, fan_ins=[4, 8, 8], param_type="ntp")
    prediction = jpc.feedforward_batch(layers, x)[-1]
    ```
    """
    skips = check_chain(model, skip_model)
    depth = len(skips)
    _check_fan_ins(fan_ins, depth)
    check_number("gamma", gamma, above=0.0)
    spread = depth if any(skip is not None for skip in skips) else 1
    scales: list[Number] = [1.0] * depth
    if choice("param_type", param_type, get_args(ParamType)) != "sp":
        if depth < 2:
            raise ValueError(f"param_type={param_type!r} is for at least two layers.")
        exponent = {"ntp": -0.5, "mupc": -1.0}[param_type]
        first, *hidden, last = fan_ins
        scales = [first**-0.5, *((n * spread) ** -0.5 for n in hidden), last**exponent]
    scales[-1] = scales[-1] / gamma
    return [
        Layer(fn, _no_skip if skip is None else skip, scale)
        for fn, skip, scale in zip(model, skips, scales, strict=True)
    ]


def check_chain(model: Any, skip_model: Any) -> list:
    """The skip connections of a network, `None` where there are none."""
    check_model("model", model)
    skips = [None] * len(model) if skip_model is None else skip_model
    check_model("skip_model", skips, holes=True)
    if len(skips) != len(model):
        sizes = f"{len(skips)} entries for {len(model)} layers"
        raise ValueError(f"skip_model has {sizes}: give one per layer, None for no skip.")
    return list(skips)


def _check_fan_ins(fan_ins: Any, depth: int) -> None:
    if not isinstance(fan_ins, Sequence) or len(fan_ins) != depth:
        raise ValueError(
            f"fan_ins must list the size of the state that enters each of the {depth} layers, "
            f"got {show(fan_ins)}."
        )
    check_sizes(**{f"fan_ins[{i}]": size for i, size in enumerate(fan_ins)})
