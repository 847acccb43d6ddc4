"""A tree of arrays as one vector, and the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jpc._flat import flatten

TREE = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.array(7.0), "c": jnp.arange(8.0, 12.0)}


def energy(tree):
    return jnp.sum(jnp.sin(tree["a"])) * tree["b"] + jnp.sum(tree["c"] ** 3)


def derivatives(way, tree):
    """Of an energy of the vector: its gradient, and the Hessian forwards over backwards."""
    vector, unpack = way(tree)
    of_vector = lambda x: energy(unpack(x))
    return vector, unpack(vector), jax.grad(of_vector)(vector), jax.hessian(of_vector)(vector)


def test_it_is_as_ravel_pytree():
    made, expected = (jax.jit(lambda t, way=way: derivatives(way, t))(TREE) for way in WAYS)
    jax.tree.map(np.testing.assert_allclose, made, expected)


WAYS = flatten, ravel_pytree


def test_of_many_at_once():
    many = jax.tree.map(lambda x: jnp.stack([x, 2 * x, 3 * x]), TREE)
    many = jax.tree.map(lambda x: jnp.stack([x, -x]), many)
    both = lambda way: jax.vmap(jax.vmap(lambda tree: derivatives(way, tree)))
    made, expected = (jax.jit(both(way))(many) for way in WAYS)
    jax.tree.map(np.testing.assert_allclose, made, expected)


def test_the_kernels_of_equal_layers_are_slices_at_run_time():
    """Also in a loop over examples: a gather would take much longer."""
    tree = [jnp.ones((4, 3))] * 5

    def step(tree):
        vector, unpack = flatten(tree)
        go = lambda x: x - jax.grad(lambda x: sum(jnp.sum(jnp.tanh(z)) for z in unpack(x)))(x)
        return jax.lax.fori_loop(0, 3, lambda _, x: go(x), vector)

    program = jax.jit(jax.vmap(step)).lower(tree).compile().as_text()
    assert "dynamic-slice(" in program
    assert " gather(" not in program


@pytest.mark.parametrize("tree", [{}, {"a": jnp.zeros((0, 3))}, {"a": jnp.arange(3.0)}])
def test_of_few(tree):
    vector, unpack = flatten(tree)
    assert vector.ndim == 1
    jax.tree.map(np.testing.assert_array_equal, unpack(vector), tree)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_of_what_is_not_finite(value):
    tree = dict(TREE, a=TREE["a"].at[0, 0].set(value))
    vector, unpack = flatten(tree)
    jax.tree.map(np.testing.assert_array_equal, unpack(vector), tree)
