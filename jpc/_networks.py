import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray

from ._conv import Conv2d
from ._given import check_sizes, choice, show, split_key
from ._layer import ParamType
from ._types import Given

Act: TypeAlias = Given[str | Callable[[Array], Array]]
CNNSize: TypeAlias = Literal["vgg5", "vgg7", "vgg9", "resnet10", "resnet18"]
Pool: TypeAlias = Literal["max", "average"]
Shape: TypeAlias = tuple[int, int, int]


def _identity(z: Array) -> Array:
    return z


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": _identity,
    "tanh": jnp.tanh,
    "hard_tanh": jax.nn.hard_tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": jax.nn.gelu,
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
}
_POOLS: dict[Pool, Callable] = {"max": eqx.nn.MaxPool2d, "average": eqx.nn.AvgPool2d}
# For each convolution its channels, in multiples of the first one's, and whether it is pooled.
_CNN_SIZES: dict[CNNSize, list[tuple[int, bool]]] = {
    "vgg5": [(1, True), (2, True), (4, True), (4, True)],
    "vgg7": [(times, pooled) for times in (1, 2, 4) for pooled in (False, True)],
    "vgg9": [(times, pooled) for times in (1, 2, 4, 4) for pooled in (False, True)],
}
# For each residual network how many blocks each of its stages has.
_RESNETS: dict[CNNSize, int] = {"resnet10": 1, "resnet18": 2}
_STAGES, _GROUP = (1, 2, 4, 8), 16


def get_act_fn(name: Given[str]) -> Callable[[Array], Array]:
    """The activation function of that name: `linear`, `tanh`, `hard_tanh`, `relu`,
    `leaky_relu`, `gelu`, `selu` or `silu`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    value = jpc.get_act_fn("relu")(jnp.array(-1.0))  # 0.0
    ```
    """
    return ACTIVATIONS[choice("activation function", name, tuple(ACTIVATIONS))]


def _activations(act_fn: Act, depth: int) -> list[eqx.nn.Lambda]:
    """One for each layer, none on the input."""
    if isinstance(act_fn, type):
        raise TypeError(f"act_fn must be a function, such as jnp.tanh, or a name: got {act_fn}.")
    act_fn = act_fn if callable(act_fn) else get_act_fn(act_fn)
    return [eqx.nn.Lambda(act) for act in (_identity, *[act_fn] * (depth - 1))]


def _linear(
    key: PRNGKeyArray, fan_in: int, fan_out: int, use_bias: bool, param_type: ParamType
) -> eqx.nn.Linear:
    linear = eqx.nn.Linear(fan_in, fan_out, use_bias, key=key)
    if param_type != "mupc":
        return linear
    weight = jr.normal(key, (fan_out, fan_in), linear.weight.dtype)
    linear = eqx.tree_at(lambda m: m.weight, linear, weight)
    return eqx.tree_at(lambda m: m.bias, linear, jnp.zeros(fan_out)) if use_bias else linear


def _widths(width: Any, depth: int) -> list[int]:
    if not isinstance(width, list | tuple):
        check_sizes(width=width)
        return [width] * (depth - 1)
    if len(width) != depth - 1:
        raise ValueError(
            f"A network of depth {depth} has {depth - 1} hidden states, but width has "
            f"{len(width)} sizes, {show(width)}: give {depth - 1}, or one number for all."
        )
    check_sizes(**{f"width[{i}]": size for i, size in enumerate(width)})
    return list(width)


def make_mlp(
    key: Given[PRNGKeyArray],
    input_dim: Given[int],
    width: Given[int | Sequence[int]],
    depth: Given[int],
    output_dim: Given[int],
    act_fn: Act,
    use_bias: Given[bool] = False,
    param_type: Given[ParamType] = "sp",
) -> list[eqx.nn.Sequential]:
    r"""A multi-layer perceptron in layers that predictive coding can use,
    $f_\ell(z_{\ell-1}) = W_\ell \phi(z_{\ell-1})$ with $\phi$ the identity for $\ell = 1$.

    **Arguments:**

    - `key`: a `jax.random.key` for the weights.
    - `input_dim`, `width`, `output_dim`: the sizes of $z_0$, of the hidden states, of $z_L$.
        The hidden states may have a width each: a list of `depth - 1` numbers.
    - `depth`: the number $L$ of weight matrices, so $L - 1$ hidden states.
    - `act_fn`: the name of an activation function (see [`jpc.get_act_fn`][]), or a function.
    - `use_bias`: whether the layers have biases.
    - `param_type`: `"mupc"` draws the weights from $N(0, 1)$; otherwise they are those of
        `equinox.nn.Linear`. The scalings are applied by the functions that take
        `param_type`, not here.

    **Returns:**

    A list of `depth` layers.

    **Example:**

    ```python
    import jax.random as jr

    import jpc

    model = jpc.make_mlp(jr.key(0), input_dim=4, width=8, depth=3, output_dim=2, act_fn="tanh")
    x = jr.normal(jr.key(1), (4,))
    hidden, more, prediction = jpc.feedforward(model, x)
    ```
    """
    check_sizes(input_dim=input_dim, depth=depth, output_dim=output_dim)
    sizes = [input_dim, *_widths(width, depth), output_dim]
    choice("use_bias", use_bias, (False, True))
    choice("param_type", param_type, get_args(ParamType))
    keys, acts = split_key(key, depth), _activations(act_fn, depth)
    return [
        eqx.nn.Sequential([act, _linear(k, n, m, use_bias, param_type)])
        for k, act, n, m in zip(keys, acts, sizes[:-1], sizes[1:], strict=True)
    ]


def make_skip_model(depth: Given[int]) -> list[eqx.nn.Identity | None]:
    """One-layer skip connections for a network of `depth` layers: the identity for every
    layer but the first and the last.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    skips = jpc.make_skip_model(3)
    prediction = jpc.init_activities_with_ffwd(model, x, skip_model=skips)[-1]
    ```
    """
    check_sizes(depth=depth)
    skips = [eqx.nn.Identity() for _ in range(depth)]
    return [skip if 0 < i < depth - 1 else None for i, skip in enumerate(skips)]


def make_residual_mlp(
    key: Given[PRNGKeyArray],
    input_dim: Given[int],
    width: Given[int],
    depth: Given[int],
    output_dim: Given[int],
    act_fn: Act,
    use_bias: Given[bool] = False,
    param_type: Given[ParamType] = "sp",
) -> tuple[list[eqx.nn.Sequential], list[eqx.nn.Identity | None]]:
    r"""A multi-layer perceptron with skip connections around its hidden layers,
    $f_\ell(z_{\ell-1}) = W_\ell \phi(z_{\ell-1}) + z_{\ell-1}$ for $1 < \ell < L$.

    With `param_type="mupc"`, here and in the call that trains it, the size of the activities
    and of the updates does not depend on the width or the depth, and a hundred layers train
    ([muPC](../variants/mupc.md)).

    **Arguments:**

    As in [`jpc.make_mlp`][], but all hidden states have the same width.

    **Returns:**

    A pair of [`jpc.make_mlp`][] and [`jpc.make_skip_model`][]: the `params` of the functions
    that take `(model, skip_model)`.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers, skips = jpc.make_residual_mlp(jr.key(0), 4, 8, 6, 2, "tanh", param_type="mupc")
    state = optim.init(eqx.filter((layers, skips), eqx.is_array))
    scaled = dict(skip_model=skips, param_type="mupc", inference=jpc.Descent(0.1, 20))
    result = jpc.make_pc_step(layers, optim, state, y, x, **scaled)
    ```
    """
    check_sizes(width=width)
    model = make_mlp(key, input_dim, width, depth, output_dim, act_fn, use_bias, param_type)
    return model, make_skip_model(depth)


def _conv(
    key: PRNGKeyArray,
    act: eqx.nn.Lambda,
    before: Shape,
    after: Shape,
    *,
    pool: Pool,
    use_bias: bool,
) -> eqx.nn.Sequential:
    conv = Conv2d(before[0], after[0], 3, padding=1, use_bias=use_bias, key=key)
    pools = [_POOLS[pool](2, 2)] if before[1:] != after[1:] else []
    return eqx.nn.Sequential([act, conv, *pools])


def _image_shape(input_shape: Any) -> Shape:
    shape = tuple(input_shape) if isinstance(input_shape, list | tuple) else ()
    if len(shape) != 3:
        raise ValueError(
            f"input_shape is (channels, height, width) of one image, got {show(input_shape)}."
        )
    check_sizes(**{f"input_shape[{i}]": n for i, n in enumerate(shape)})
    return shape


def _check_sides(shape: Shape, size: CNNSize, times: int) -> None:
    if min(shape[1:]) < 2**times:
        raise ValueError(
            f"Images of {shape[1]} x {shape[2]} are too small for {size!r}, which halves them "
            f"{times} times: they must be at least {2**times} x {2**times}."
        )


def _image_shapes(shape: Shape, size: CNNSize, channels: int) -> list[Shape]:
    """Of the states $z_0$ ... $z_{L-1}$."""
    _check_sides(shape, size, sum(pooled for _, pooled in _CNN_SIZES[size]))
    shapes = [shape]
    for times, pooled in _CNN_SIZES[size]:
        _, height, width = shapes[-1]
        shapes.append((times * channels, height // (1 + pooled), width // (1 + pooled)))
    return shapes


class Block(eqx.Module):
    r"""A residual block that is normalised first, $f(z) = W_s z + W_2 * \phi(n_2(W_1 *
    \phi(n_1(z))))$. Where the number of channels or the size of the image changes, $W_s$ is a
    convolution of 1 x 1 of $\phi(n_1(z))$, and the identity elsewhere.
    """

    norms: tuple[eqx.nn.GroupNorm, eqx.nn.GroupNorm]
    convs: tuple[Conv2d, Conv2d]
    skip: Conv2d | None
    act: Callable[[Array], Array]

    def __init__(self, key: PRNGKeyArray, act: Callable, before: int, after: int, stride: int):
        keys = jr.split(key, 3)
        conv = lambda key, n, size, stride: Conv2d(
            n, after, size, stride, padding=size // 2, use_bias=False, key=key
        )
        self.norms = _norm(before), _norm(after)
        self.convs = conv(keys[0], before, 3, stride), conv(keys[1], after, 3, 1)
        changes = (before, stride) != (after, 1)
        self.skip = conv(keys[2], before, 1, stride) if changes else None
        self.act = act

    def __call__(self, z: Array, *, key: PRNGKeyArray | None = None) -> Array:
        inner = self.act(self.norms[0](z))
        across = z if self.skip is None else self.skip(inner)
        return across + self.convs[1](self.act(self.norms[1](self.convs[0](inner))))


def _norm(channels: int) -> eqx.nn.GroupNorm:
    """Groups of 16 channels, or one of all."""
    return eqx.nn.GroupNorm(1 if channels % _GROUP else channels // _GROUP, channels)


def _pool_all(z: Array) -> Array:
    return jnp.mean(z, axis=(1, 2))


def _residual(
    key: PRNGKeyArray, shape: Shape, output_dim: int, act_fn: Act, size: CNNSize, channels: int
) -> list[eqx.nn.Sequential]:
    """The layers of a residual network."""
    act, count = _activations(act_fn, 2)[1].fn, _RESNETS[size]
    _check_sides(shape, size, len(_STAGES) - 1)
    first, *keys, last = split_key(key, 2 + count * len(_STAGES))
    stem = Conv2d(shape[0], channels, 3, padding=1, use_bias=False, key=first)
    layers, before = [eqx.nn.Sequential([stem])], channels
    for i, block_key in enumerate(keys):
        stage, later = divmod(i, count)
        after = channels * _STAGES[stage]
        stride = 1 if later or stage == 0 else 2
        layers.append(eqx.nn.Sequential([Block(block_key, act, before, after, stride)]))
        before = after
    pooled = [_norm(before), eqx.nn.Lambda(act), eqx.nn.Lambda(_pool_all)]
    linear = eqx.nn.Linear(before, output_dim, key=last)
    return [*layers, eqx.nn.Sequential([*pooled, linear])]


def make_cnn(
    key: Given[PRNGKeyArray],
    input_shape: Given[Sequence[int]],
    output_dim: Given[int],
    act_fn: Act = "gelu",
    *,
    size: Given[CNNSize] = "vgg5",
    channels: Given[int] = 128,
    pool: Given[Pool] = "max",
    use_bias: Given[bool] = True,
) -> list[eqx.nn.Sequential]:
    r"""A convolutional network in the manner of VGG, or a residual one, in layers that predictive
    coding can use. Those of a VGG are $f_\ell(z_{\ell-1}) = \mathrm{pool}(W_\ell *
    \phi(z_{\ell-1}) + b_\ell)$ with $\phi$ the identity for $\ell = 1$, and a linear last layer
    on the flattened state.

    | `size` | channels of the convolutions | pooled | images at least |
    |---|---|---|---|
    | `"vgg5"` | 128, 256, 512, 512 | all | 16 x 16 |
    | `"vgg7"` | 128, 128, 256, 256, 512, 512 | every second | 8 x 8 |
    | `"vgg9"` | 128, 128, 256, 256, 512, 512, 512, 512 | every second | 16 x 16 |

    The number in the name counts the layers. Convolutions are 3 x 3 and keep the size of the
    image, which a pooling of 2 x 2 halves, an odd row or column left out.

    `"resnet18"` is a residual network: a convolution, four stages of two blocks with 1, 2, 4 and
    8 times the `channels` (64 are usual), from the second stage on halving the image, and a last
    layer of the mean over the image. A block is one layer of predictive coding. It normalises
    first, groups of 16 channels (of all, if there are no such groups) of one example, and has two
    convolutions:
    $f(z) = z + W_2 * \phi(n_2(W_1 * \phi(n_1(z))))$. `"resnet10"` has one block in each stage.
    Images are at least 8 x 8.

    **Arguments:**

    - `key`: a `jax.random.key` for the weights, which are those of Equinox's layers.
    - `input_shape`: channels, height and width of one image, the shape of $z_0$.
    - `output_dim`: the size of $z_L$.
    - `act_fn`: the name of an activation function (see [`jpc.get_act_fn`][]), or a function.
    - `size`: a row of the table, `"resnet10"` or `"resnet18"`.
    - `channels`: those of the first convolution. The others follow in proportion.
    - `pool`: of a VGG, `"max"`, as in the literature, or `"average"`. Where a maximum passes
        from one unit to another the energy has a kink. So with `"max"` inference settles
        slowly, and [`jpc.Equilibrium`][] seldom reaches its tolerance. With `"average"` it takes
        a few steps.
    - `use_bias`: whether the layers of a VGG have biases. A residual network has those of its
        normalisations and of its last layer.

    **Returns:**

    A list of layers.

    **Example**, after [these lines](index.md#the-examples):

    ```python
    layers = jpc.make_cnn(jr.key(0), (3, 16, 16), 10, size="vgg5", channels=4)
    image = jnp.zeros((3, 16, 16))
    logits = jpc.feedforward(layers, image)[-1]
    ```
    """
    check_sizes(output_dim=output_dim, channels=channels)
    choice("use_bias", use_bias, (False, True))
    choice("pool", pool, get_args(Pool))
    shape = _image_shape(input_shape)
    if choice("size", size, get_args(CNNSize)) in _RESNETS:
        return _residual(key, shape, output_dim, act_fn, size, channels)
    shapes = _image_shapes(shape, size, channels)
    *keys, last_key = split_key(key, len(shapes))
    *acts, last_act = _activations(act_fn, len(shapes))
    steps = zip(keys, acts, shapes[:-1], shapes[1:], strict=True)
    linear = eqx.nn.Linear(math.prod(shapes[-1]), output_dim, use_bias, key=last_key)
    last = eqx.nn.Sequential([last_act, eqx.nn.Lambda(jnp.ravel), linear])
    return [*(_conv(*step, pool=pool, use_bias=use_bias) for step in steps), last]
