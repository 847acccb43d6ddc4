from collections.abc import Callable, Sequence
from typing import Literal, Unpack

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from ._layer import feedforward
from ._options import Options, Params, Setup, check_model, choice, data, network, number, setup


def init_activities_with_ffwd(
    model: Sequence[Callable],
    input: ArrayLike,
    *,
    skip_model: Sequence[Callable | None] | None = None,
    **options: Unpack[Options],
) -> list[Array]:
    r"""The activities of a feedforward pass, $z_\ell = f_\ell(z_{\ell-1})$ with $z_0 = x$.

    **Arguments:**

    - `model`: the layers, callables on one example.
    - `input`: a batch of $x$.
    - `skip_model`: one skip connection per layer, `None` where there is none.
    - `options`: see [`jpc.Options`][].

    **Returns:**

    The list $z_1 \dots z_L$.
    """
    return _feedforward(setup(model, options), (model, skip_model), data("input", input))


@eqx.filter_jit
def _feedforward(setup: Setup, params: Params, input: Array) -> list[Array]:
    layers, _ = network(setup, params, input)
    return jax.vmap(lambda z: feedforward(layers, z))(input)


def init_activities_from_normal(
    key: PRNGKeyArray,
    layer_sizes: Sequence[int | tuple[int, ...]],
    mode: Literal["supervised", "unsupervised"],
    batch_size: int,
    sigma: float | Array = 0.05,
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
    """
    choice("mode", mode, ("supervised", "unsupervised"))
    if len(layer_sizes) < 2:
        raise ValueError(f"layer_sizes must list z_0 ... z_L, got {list(layer_sizes)}.")
    shapes = [(size,) if isinstance(size, int) else tuple(size) for size in layer_sizes]
    if batch_size < 1 or any(n < 1 for shape in shapes for n in shape):
        raise ValueError(
            f"Sizes must be positive, got batch_size={batch_size}, layer_sizes={layer_sizes}."
        )
    scale = number("sigma", sigma, least=0.0)
    shapes = shapes[1:] if mode == "supervised" else shapes
    keys = jr.split(key, len(shapes))
    return [scale * jr.normal(k, (batch_size, *s)) for k, s in zip(keys, shapes, strict=True)]


def init_activities_with_amort(
    amortiser: Sequence[Callable], generator: Sequence[Callable], input: ArrayLike
) -> list[Array]:
    r"""An amortiser's guess of a generator's activities: its own feedforward activities in the
    opposite order, $z_{L-\ell} = q_\ell(z_{L-\ell+1})$ from the data on.

    **Arguments:**

    - `amortiser`: the layers $q_1 \dots q_L$, from the data to $z_0$.
    - `generator`: the layers $f_1 \dots f_L$, from $z_0$ to the data.
    - `input`: a batch of data, the input of the amortiser.

    **Returns:**

    The list $z_0 \dots z_{L-1}$, then the generator's prediction $f_L(z_{L-1})$.
    """
    check_model("amortiser", amortiser)
    return _amortise(
        setup(generator, {}), (amortiser, None), (generator, None), data("input", input)
    )


@eqx.filter_jit
def _amortise(setup: Setup, amortiser: Params, generator: Params, data: Array) -> list[Array]:
    if len(amortiser[0]) != len(generator[0]):
        raise ValueError(
            f"The amortiser mirrors the generator, layer by layer: it has {len(amortiser[0])} "
            f"layers, the generator {len(generator[0])}."
        )
    layers, _ = network(setup, amortiser, data)
    guesses = jax.vmap(lambda z: feedforward(layers, z))(data)[::-1]
    layers, shapes = network(setup, generator, guesses[0])
    expected = [z.shape for z in shapes]
    got = [z.shape[1:] for z in [*guesses, data]]
    if expected != got:
        raise ValueError(
            f"The generator's states have the shapes {expected}, the amortiser's (in the "
            f"generator's order, the data last) {got}."
        )
    return [*guesses, jax.vmap(layers[-1])(guesses[-1])]
