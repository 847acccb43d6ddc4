"""The networks that the package makes."""

import itertools

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
import scipy.stats
from helpers import Chain, arrays, assert_close, scalings, slowly, weights

import jpc
from jpc._inference import equilibrium as equilibrium_module

PARAM_TYPES = ("sp", "ntp", "mupc")
ACTIVATIONS = {
    "linear": lambda z: z,
    "tanh": jnp.tanh,
    "hard_tanh": jax.nn.hard_tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": jax.nn.gelu,
    "selu": jax.nn.selu,
    "silu": jax.nn.silu,
}


@pytest.fixture
def quick_compilation():
    """XLA takes longer to optimise these programs than to run them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("act_fn", ["linear", "tanh", "relu"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_mlp_is_weights_times_activations(act_fn, use_bias):
    model = jpc.make_mlp(jr.key(0), 3, 5, 4, 2, act_fn, use_bias)
    assert [w.shape for w in weights(model)] == [(5, 3), (5, 5), (5, 5), (2, 5)]
    biases = [np.asarray(layer.layers[1].bias) for layer in model] if use_bias else None
    chain = Chain([np.asarray(w) for w in weights(model)], act_fn, biases)
    x = jr.normal(jr.key(1), (6, 3))
    states = jax.vmap(lambda z: jpc.feedforward(model, z))(x)
    assert_close(states, chain.feedforward(x)[1:])


def test_mlp_has_no_activation_on_its_input():
    model = jpc.make_mlp(jr.key(0), 3, 5, 1, 2, "relu")
    x = jnp.array([-1.0, -2.0, -3.0])
    assert_close(model[0](x), weights(model)[0] @ x)


def test_mlp_takes_a_function_as_activation():
    named, given = (jpc.make_mlp(jr.key(0), 2, 3, 3, 2, act) for act in ("tanh", jnp.tanh))
    x = jnp.array([0.3, -1.0])
    assert_close(jpc.feedforward(given, x), jpc.feedforward(named, x))


def test_mupc_weights_are_standard_normal():
    model = jpc.make_mlp(jr.key(0), 80, 90, 3, 70, "tanh", param_type="mupc")
    for w in weights(model):
        assert scipy.stats.kstest(np.ravel(w), "norm").pvalue > 1e-3


@pytest.mark.parametrize("param_type", ["sp", "ntp"])
def test_other_weights_are_those_of_equinox(param_type):
    model = jpc.make_mlp(jr.key(0), 80, 90, 3, 70, "tanh", param_type=param_type)
    for w, n in zip(weights(model), (80, 90, 90), strict=True):
        uniform = scipy.stats.uniform(-(n**-0.5), 2 * n**-0.5)
        assert scipy.stats.kstest(np.ravel(w), uniform.cdf).pvalue > 1e-3


@pytest.mark.parametrize("param_type", PARAM_TYPES)
def test_weights_of_different_layers_and_keys_are_independent(param_type):
    model = jpc.make_mlp(jr.key(0), 40, 40, 3, 40, "tanh", param_type=param_type)
    other = jpc.make_mlp(jr.key(1), 40, 40, 3, 40, "tanh", param_type=param_type)
    for a, b in itertools.combinations([*weights(model), *weights(other)], 2):
        assert abs(np.corrcoef(np.ravel(a), np.ravel(b))[0, 1]) < 0.1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_the_function_of_its_name(name):
    z = jnp.linspace(-3, 3, 25)
    assert_close(jpc.get_act_fn(name)(z), ACTIVATIONS[name](z))


def test_skip_model_skips_hidden_layers_only():
    z = jnp.array([1.5, -2.0])
    for depth in range(1, 6):
        skips = jpc.make_skip_model(depth)
        assert len(skips) == depth
        for i, skip in enumerate(skips):
            if 0 < i < depth - 1:
                assert_close(skip(z), z)
            else:
                assert skip is None


def test_mlp_of_one_width_draws_the_layers_of_equinox_from_the_split_key():
    keys = jr.split(jr.key(7), 3)
    model = jpc.make_mlp(jr.key(7), 4, 6, 3, 2, "tanh")
    sizes = [(4, 6), (6, 6), (6, 2)]
    for w, k, (n, m) in zip(weights(model), keys, sizes, strict=True):
        assert_close(w, eqx.nn.Linear(n, m, use_bias=False, key=k).weight, rtol=0)


@pytest.mark.parametrize("widths", [[5, 7, 4], (5, 7, 4)])
def test_mlp_has_any_widths(widths):
    model = jpc.make_mlp(jr.key(0), 3, widths, 4, 2, "tanh")
    assert [w.shape for w in weights(model)] == [(5, 3), (7, 5), (4, 7), (2, 4)]
    x = jr.normal(jr.key(1), (6, 3))
    states = jax.vmap(lambda z: jpc.feedforward(model, z))(x)
    assert_close(states, Chain([np.asarray(w) for w in weights(model)]).feedforward(x)[1:])


def test_equal_widths_are_one_width():
    one, each = (jpc.make_mlp(jr.key(0), 3, w, 4, 2, "tanh") for w in (5, [5, 5, 5]))
    assert_close(weights(each), weights(one), rtol=0)


@pytest.mark.parametrize("param_type", ["sp", slowly("ntp"), "mupc"])
@pytest.mark.usefixtures("quick_compilation")
def test_residual_mlp_adds_the_state_to_its_prediction(param_type):
    model, skips = jpc.make_residual_mlp(jr.key(0), 3, 5, 5, 2, "tanh", param_type=param_type)
    x = jr.normal(jr.key(1), (6, 3))
    options = dict(skip_model=skips, param_type=param_type)
    states = jpc.init_activities_with_ffwd(model, x, **options)
    scales = scalings(param_type, [3, 5, 5, 5, 5], skips=True)
    chain = Chain([np.asarray(w) for w in weights(model)], scales=scales, skips=True)
    assert_close(states, chain.feedforward(x)[1:])
    y, optim = jnp.ones((6, 2)), optax.sgd(0.1, momentum=0.9)
    state = optim.init(eqx.filter((model, skips), eqx.is_array))
    options |= dict(inference=jpc.Descent(0.1, 3))
    step = jpc.make_pc_step(model, optim, state, y, x, **options)
    hidden = [np.asarray(z) for z in step["activities"][:-1]]
    learned = chain.weight_grads([x, *hidden, y])
    expected = [w - 0.1 * g for w, g in zip(weights(model), learned, strict=True)]
    assert_close(weights(step["model"]), expected)


@pytest.mark.parametrize("depth", [10, 40, slowly(100)])
def test_residual_mupc_states_do_not_depend_on_depth(depth):
    """The limit of a linear network: each of the L - 2 residual layers multiplies the second
    moment of the state by 1 + 1/L, so that it tends to e, whatever the depth."""
    x = jr.normal(jr.key(1), (20, 50))
    model, skips = jpc.make_residual_mlp(jr.key(0), 50, 200, depth, 2, "linear", param_type="mupc")
    states = jpc.init_activities_with_ffwd(model, x, skip_model=skips, param_type="mupc")
    growth = np.mean(np.square(states[-2])) / np.mean(np.square(states[0]))
    np.testing.assert_allclose(growth, (1 + 1 / depth) ** (depth - 2), rtol=0.1)


# --- convolutional networks ---

SIZES = ("vgg5", "vgg7", "vgg9")
# Channels and side of the hidden states, by hand.
STATES = {
    ("vgg5", 28): "128:14 256:7 512:3 512:1",
    ("vgg5", 32): "128:16 256:8 512:4 512:2",
    ("vgg7", 28): "128:28 128:14 256:14 256:7 512:7 512:3",
    ("vgg7", 32): "128:32 128:16 256:16 256:8 512:8 512:4",
    ("vgg9", 28): "128:28 128:14 256:14 256:7 512:7 512:3 512:3 512:1",
    ("vgg9", 32): "128:32 128:16 256:16 256:8 512:8 512:4 512:4 512:2",
}


@pytest.mark.parametrize(("size", "side"), STATES)
def test_cnn_follows_the_table(size, side):
    def forward(key):
        model = jpc.make_cnn(key, (3, side, side), 10, size=size)
        return jpc.feedforward(model, jnp.zeros((3, side, side))), arrays(model)

    states, parameters = jax.eval_shape(forward, jr.key(0))
    expected = [tuple(map(int, word.split(":"))) for word in STATES[size, side].split()]
    assert [z.shape for z in states] == [*((c, n, n) for c, n in expected), (10,)]
    assert len(states) == int(size[-1])
    channels = [3, *(c for c, _ in expected)]
    convolutions = sum(9 * n * m + m for n, m in itertools.pairwise(channels))
    linear = 10 * channels[-1] * expected[-1][1] ** 2 + 10
    assert sum(w.size for w in parameters) == convolutions + linear


def conv(weight, bias, z):
    """3 x 3, padded by zeros, in NumPy."""
    padded = np.pad(z, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("oikl,ihwkl->ohw", weight, windows) + bias


def pooled(reduce, z):
    """Over blocks of 2 x 2, in NumPy, without an odd last row or column."""
    c, h, w = z.shape
    return reduce(z[:, : h // 2 * 2, : w // 2 * 2].reshape(c, h // 2, 2, w // 2, 2), axis=(2, 4))


@pytest.mark.parametrize("pool", ["max", "average"])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.usefixtures("quick_compilation")
def test_cnn_is_activation_then_convolution_then_pooling(pool, use_bias):
    model = jpc.make_cnn(
        jr.key(0), (2, 9, 12), 3, "tanh", size="vgg7", channels=2, pool=pool, use_bias=use_bias
    )
    x = np.asarray(jr.normal(jr.key(1), (2, 9, 12)))
    reduce = {"max": np.max, "average": np.mean}[pool]
    parameters = iter(np.asarray(w) for w in arrays(model))
    take = lambda: (next(parameters), next(parameters) if use_bias else 0.0)
    expected = []
    for i in range(6):
        z = np.tanh(expected[-1]) if i else x
        expected.append(conv(*take(), z) if i % 2 == 0 else pooled(reduce, conv(*take(), z)))
    weight, bias = take()
    expected.append(weight @ np.tanh(expected[-1]).ravel() + bias)
    assert_close(jpc.feedforward(model, jnp.asarray(x)), expected)


def test_cnn_weights_are_those_of_equinox():
    model = jpc.make_cnn(jr.key(0), (8, 8, 8), 10, size="vgg7", channels=8)
    fan_ins = [9 * n for n in (8, 8, 8, 16, 16, 32)] + [32]
    for w, n in zip(arrays(model)[::2], fan_ins, strict=True):
        uniform = scipy.stats.uniform(-(n**-0.5), 2 * n**-0.5)
        assert scipy.stats.kstest(np.ravel(w), uniform.cdf).pvalue > 1e-3


def energy_of(states, parameters, static):
    model = eqx.combine(parameters, static)
    pairs = zip(model, states[:-1], states[1:], strict=True)
    errors = [above - jax.vmap(layer)(below) for layer, below, above in pairs]
    return sum(0.5 * jnp.sum(error**2) for error in errors) / len(states[0])


grads_of = eqx.filter_jit(jax.value_and_grad(energy_of, argnums=(0, 1)))


def cnn_steps(size, pool, methods):
    """One step of a small network with each method. The oracle is the energy, written out, which
    inference must lower. Yields what is left of its gradient in the hidden states, and how far
    the parameters moved from where its gradient in them leads, both relative."""
    model = jpc.make_cnn(jr.key(0), (1, 16, 16), 4, size=size, channels=2, pool=pool)
    x, y, optim = jr.normal(jr.key(1), (3, 1, 16, 16)), jnp.eye(3, 4), optax.sgd(1.0)
    parts, norm = eqx.partition(model, eqx.is_array), optax.tree.norm
    guess = jax.vmap(lambda z: jpc.feedforward(model, z))(x)[:-1]
    before, (start, _) = grads_of([x, *guess, y], *parts)
    for method in methods:
        step = jpc.make_pc_step(model, optim, optim.init((parts[0], None)), y, x, inference=method)
        after, (end, slope) = grads_of([x, *step["activities"][:-1], y], *parts)
        assert_close(step["energies"].sum(), after)
        assert after < before
        moved = jax.tree.map(lambda w, v: w - v, arrays(model), arrays(step["model"]))
        off = jax.tree.map(lambda m, s: m - s, moved, arrays(slope))
        yield norm(end[1:-1]) / norm(start[1:-1]), norm(off) / norm(slope)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["vgg5", "vgg9"])
@pytest.mark.usefixtures("quick_compilation")
def test_every_cnn_learns_at_its_equilibrium(size, monkeypatch):
    monkeypatch.setattr(equilibrium_module, "_DEEP", 0)  # Ten chords are long to compile.
    solved = jpc.Equilibrium(rtol=1e-6, chords=10, max_steps=0)
    heun = jpc.GradientFlow(dfx.Heun(), t1=200.0, rtol=1e-4)
    for left, off in cnn_steps(size, "average", [solved, heun]):
        assert left < 1e-3
        assert off < 1e-3


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("method", [jpc.Equilibrium(max_steps=0), slowly(jpc.Descent(0.1, 200))])
def test_cnn_with_max_pooling_learns_at_lower_energy(method):
    """Its energy has kinks, where the gradient does not vanish: not as exactly."""
    for left, off in cnn_steps("vgg5", "max", [method]):
        assert left < 0.11  # The jumps at the kinks; descent leaves 0.085.
        assert off < 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jpc.get_act_fn("tahn"), "tahn"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 2, 2, 2, "sigmoidal"), "sigmoidal"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 2, 0, 2, "tanh"), "depth=0"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 0, 2, 2, "tanh"), "width=0"),
        (lambda: jpc.make_skip_model(0), "depth=0"),
        (lambda: jpc.make_mlp(jr.key(0), 2, [2, 3], 2, 2, "tanh"), r"depth 2 has 1.*\[2, 3\]"),
        (lambda: jpc.make_mlp(jr.key(0), 2, [2, 0], 3, 2, "tanh"), r"width\[1\]=0"),
        (lambda: jpc.make_residual_mlp(jr.key(0), 2, [2, 3], 3, 2, "tanh"), r"width=\[2, 3\]"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 15, 28), 10), "15 x 28.*'vgg5'.*16 x 16"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 7, 7), 10, size="vgg7"), "at least 8 x 8"),
        (lambda: jpc.make_cnn(jr.key(0), (28, 28), 10), r"\(28, 28\)"),
        (lambda: jpc.make_cnn(jr.key(0), 28, 10), "got 28"),
        (lambda: jpc.make_cnn(jr.key(0), (0, 28, 28), 10), r"input_shape\[0\]=0"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 28, 28), 0), "output_dim=0"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 28, 28), 10, size="vgg8"), "vgg8.*'vgg9'"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 28, 28), 10, channels=0), "channels=0"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 28, 28), 10, pool="mean"), "'mean'.*'average'"),
        (lambda: jpc.make_cnn(jr.key(0), (1, 28, 28), 10, "gello"), "gello"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class TestResidualNetworks:
    def test_blocks_are_layers(self):
        """18 layers with weights: 1 + 8 x 2 + 1, shortcuts aside; those of ten likewise."""
        shapes = lambda size: jax.eval_shape(
            lambda x: jpc.feedforward(
                jpc.make_cnn(jr.key(0), (3, 32, 32), 10, size=size, channels=8), x
            ),
            jnp.zeros((3, 32, 32)),
        )
        states = [z.shape for z in shapes("resnet18")]
        stages = [(8, 32, 32)] * 2 + [(16, 16, 16)] * 2 + [(32, 8, 8)] * 2 + [(64, 4, 4)] * 2
        assert states == [(8, 32, 32), *stages, (10,)]
        assert len(shapes("resnet10")) == 6

    def test_block_by_hand(self):
        """One that halves the image, in terms of Equinox's layers."""
        layer = jpc.make_cnn(jr.key(0), (3, 8, 8), 4, size="resnet10", channels=16)[2]
        (block,) = layer.layers
        z = jr.normal(jr.key(1), (16, 8, 8))
        inner = jax.nn.gelu((z - z.mean()) / jnp.sqrt(z.var() + block.norms[0].eps))
        first = block.convs[0](inner)
        groups = first.reshape(2, -1)
        spread = jnp.sqrt(groups.var(axis=1, keepdims=True) + block.norms[1].eps)
        second = jax.nn.gelu((groups - groups.mean(axis=1, keepdims=True)) / spread)
        expected = block.skip(inner) + block.convs[1](second.reshape(32, 4, 4))
        np.testing.assert_allclose(layer(z), expected, atol=1e-10)

    def test_small_images_are_refused(self):
        with pytest.raises(ValueError, match="at least 8 x 8"):
            jpc.make_cnn(jr.key(0), (3, 4, 4), 4, size="resnet18")
