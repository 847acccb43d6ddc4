import itertools
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from ._checks import checked_jit, raise_if_not_finite
from ._clamp import Masked
from ._given import check_model, check_sizes, choice, show, split_key
from ._layer import feedforward_batch
from ._options import Options, Params, Setup, Skips, data, input_data, network, number, part, setup
from ._types import Given, Layers, Number

Sizes = Given[Sequence[int | tuple[int, ...]]]


def init_activities_with_ffwd(
    model: Given[Layers],
    input: Given[ArrayLike],
    *,
    skip_model: Skips = None,
    **options: Unpack[Options],
) -> list[Array]:
    r"""The activities of a feedforward pass, $z_\ell = f_\ell(z_{\ell-1})$ with $z_0 = x$.

    **Arguments:**

    - `model`: the layers, callables on one example.
    - `input`: a batch of $x$.
    - `skip_model`: one skip connection per layer, `None` where there is none.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    The list $z_1 \dots z_L$; with an `input_mask` $z_0 \dots z_L$.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    activities = jpc.init_activities_with_ffwd(model, x)
    prediction = activities[-1]
    ```
    """
    params = (model, skip_model)
    return ffwd(setup(params, options), params, input_data(params, input))


@checked_jit
def ffwd(setup: Setup, params: Params, input: Array) -> list[Array]:
    given = part(setup, "input", input)
    input = given.value if isinstance(given, Masked) else given
    input = raise_if_not_finite({"input": input}, input)
    layers, _ = network(setup, params, input)
    states = feedforward_batch(layers, input)
    return [input, *states] if isinstance(given, Masked) else states


def init_activities_from_normal(
    key: Given[PRNGKeyArray],
    layer_sizes: Sizes,
    mode: Given[Literal["supervised", "unsupervised"]],
    batch_size: Given[int],
    sigma: Given[Number] = 0.05,
) -> list[Array]:
    r"""Random activities, $z_\ell \sim N(0, \sigma^2)$.

    **Arguments:**

    - `key`: a `jax.random.key`.
    - `layer_sizes`: the size of each of $z_0 \dots z_L$; a shape for those of another rank.
    - `mode`: `"supervised"` for $z_1 \dots z_L$; `"unsupervised"` for $z_0 \dots z_L$.
    - `batch_size`: the number of examples.
    - `sigma`: the standard deviation.

    **Returns:**

    A list of activities.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    start = jpc.init_activities_from_normal(jr.key(0), [4, 8, 8, 2], "supervised", batch_size=5)
    ```
    """
    shapes = state_shapes(layer_sizes, batch_size, mode)
    scale = number("sigma", sigma, least=0.0)
    keys = split_key(key, len(shapes))
    return [scale * jr.normal(k, (batch_size, *s)) for k, s in zip(keys, shapes, strict=True)]


def state_shapes(layer_sizes: Any, batch_size: Any, mode: Any) -> list[list[int]]:
    """The shape of each state from $z_1$ on, or unsupervised from $z_0$ on, for one example."""
    choice("mode", mode, ("supervised", "unsupervised"))
    listed = isinstance(layer_sizes, Sequence | np.ndarray) and not isinstance(layer_sizes, bytes)
    if not listed or len(layer_sizes) < 2:
        raise ValueError(f"layer_sizes must list those of z_0 ... z_L, got {show(layer_sizes)}.")
    shapes = [np.atleast_1d(size).tolist() for size in layer_sizes]
    for size in itertools.chain(*shapes):
        check_sizes(batch_size=batch_size, layer_sizes=size)
    return shapes[1:] if mode == "supervised" else shapes


def start_at_random(key: Any, layer_sizes: Any, size: int, sigma: Any = 0.05) -> list[Array]:
    """The activities of a step without an input."""
    if key is None or layer_sizes is None:
        raise ValueError(
            "Without an input, inference starts from random activities: give key and "
            "layer_sizes (of z_0 ... z_L), or activities."
        )
    return init_activities_from_normal(key, layer_sizes, "unsupervised", size, sigma)


def init_activities_with_amort(
    amortiser: Given[Layers], generator: Given[Layers], input: Given[ArrayLike]
) -> list[Array]:
    r"""An amortiser's guess of a generator's activities: its own feedforward activities in the
    opposite order, $z_{L-\ell} = q_\ell(z_{L-\ell+1})$ from the data on.

    **Arguments:**

    - `amortiser`: the layers $q_1 \dots q_L$, from the data to $z_0$.
    - `generator`: the layers $f_1 \dots f_L$, from $z_0$ to the data.
    - `input`: a batch of data, the input of the amortiser.

    **Returns:**

    The list $z_0 \dots z_{L-1}$, then the generator's prediction $f_L(z_{L-1})$.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    start = jpc.init_activities_with_amort(back, model, y)
    ```
    """
    check_model("amortiser", amortiser)
    check_model("generator", generator)
    return _amortise(setup((generator, None), {}), amortiser, generator, data("input", input))


@checked_jit
def _amortise(setup: Setup, amortiser: Layers, generator: Layers, data: Array) -> list[Array]:
    data = raise_if_not_finite({"the amortiser's input": data}, data)
    layers, _ = network(setup, (amortiser, None), data, name="amortiser")
    guesses = feedforward_batch(layers, data)[::-1]
    layers, states = network(setup, (generator, None), guesses[0], name="generator")
    expected, got = [z.shape for z in states], [z.shape[1:] for z in [*guesses, data]]
    if expected != got:
        raise ValueError(
            f"The amortiser must mirror the generator: the generator's states have the shapes "
            f"{expected}, the amortiser's, in the same order, {got}."
        )
    return [*guesses, jax.vmap(layers[-1])(guesses[-1])]
