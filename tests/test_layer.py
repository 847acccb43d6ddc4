"""Layers, their parameterisations, and the networks made of them."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.stats
from helpers import Chain, assert_close, scalings, weights

import jpc

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


def test_layer_is_a_scaled_function_plus_a_skip():
    z = jnp.array([1.0, -2.0, 0.5])
    assert_close(jpc.Layer(jnp.sin)(z), np.sin(z))
    assert_close(jpc.Layer(jnp.sin, scale=0.3)(z), 0.3 * np.sin(z))
    assert_close(jpc.Layer(jnp.sin, jnp.cos, 0.3)(z), 0.3 * np.sin(z) + np.cos(z))


def test_feedforward_applies_layer_after_layer():
    states = jpc.feedforward([jnp.sin, jnp.cos, jnp.exp], jnp.asarray(0.3))
    assert_close(states, [np.sin(0.3), np.cos(np.sin(0.3)), np.exp(np.cos(np.sin(0.3)))])


@pytest.mark.parametrize("param_type", PARAM_TYPES)
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("gamma", [1.0, 2.5])
def test_parameterise_follows_the_table(param_type, skips, gamma):
    fan_ins = [9, 4, 16, 25]
    fns = [jnp.sin, jnp.cos, jnp.tanh, jnp.exp]
    skip_model = jpc.make_skip_model(4) if skips else None
    layers = jpc.parameterise(fns, skip_model, fan_ins=fan_ins, param_type=param_type, gamma=gamma)
    z = jnp.array([0.2, -0.7])
    scales = scalings(param_type, fan_ins, skips=skips, gamma=gamma)
    for i, (layer, fn, scale) in enumerate(zip(layers, fns, scales, strict=True)):
        assert_close(layer(z), scale * fn(z) + (z if skips and i in (1, 2) else 0))


def test_the_table_by_numbers():
    """The oracle of the other tests, at one entry of each column."""
    fan_ins = [9, 4, 4, 25]
    assert scalings("sp", fan_ins, gamma=2) == [1, 1, 1, 1 / 2]
    assert scalings("ntp", fan_ins, gamma=2) == [1 / 3, 1 / 2, 1 / 2, 1 / 10]
    assert scalings("mupc", fan_ins, gamma=2) == [1 / 3, 1 / 2, 1 / 2, 1 / 50]
    assert scalings("mupc", fan_ins, skips=True) == [1 / 3, 1 / 4, 1 / 4, 1 / 25]


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jpc.get_act_fn("tahn"), "tahn"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 2, 2, 2, "sigmoidal"), "sigmoidal"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 2, 0, 2, "tanh"), "depth=0"),
        (lambda: jpc.make_mlp(jr.key(0), 2, 0, 2, 2, "tanh"), "width=0"),
        (lambda: jpc.make_skip_model(0), "depth=0"),
    ],
)
def test_misuse_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
