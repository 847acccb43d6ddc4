"""Layers and their parameterisations."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, scalings

import jpc

PARAM_TYPES = ("sp", "ntp", "mupc")


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
