"""Associative memory: a generative network with a prior on its latents completes its output. A
linear one is a Gaussian, and the oracle its conditional mean, in NumPy.
"""

import jax.numpy as jnp
import numpy as np
from helpers import assert_close, make_problem

import jpc

PROBLEM = make_problem("linear", (2, 3, 6), gain=1.5)
IMAGE = jnp.asarray(np.random.default_rng(0).normal(size=(5, 6)))
SEEN = jnp.tile(jnp.arange(6) < 3, (5, 1))
ENERGY = jpc.PCEnergy() + jpc.GaussianPrior(1.0)


def conditional_mean():
    """Of the free half of x ~ N(0, W_2 (W_1 W_1' + I) W_2' + I)."""
    first, second = (np.asarray(w) for w in PROBLEM.weights)
    cov = second @ (first @ first.T + np.eye(3)) @ second.T + np.eye(6)
    return IMAGE[:, :3] @ np.linalg.solve(cov[:3, :3], cov[:3, 3:])


def test_the_half_that_is_free_is_its_conditional_mean():
    """By the paper's calls, and by those of the core."""
    start = [jnp.zeros((5, n)) for n in (2, 3, 6)]
    options = dict(mask=SEEN, energy=ENERGY, inference=jpc.Descent(0.1, 2000))
    found = jpc.solve_inference(PROBLEM.params, start, IMAGE, **options)[-1]
    assert_close(found[:, 3:], conditional_mean(), rtol=0, atol=1e-8)
    given = dict(given={2: IMAGE}, masks={2: SEEN}, start={0: start[0]})
    nodes, clamps = jpc.pose(ENERGY, PROBLEM.layers, **given)
    inferred = jpc.Equilibrium(chords=3, max_steps=0)(ENERGY, PROBLEM.layers, nodes, clamps)
    completed = jpc.states(inferred.nodes, clamps)[2]
    assert_close(completed[:, 3:], conditional_mean(), rtol=0, atol=1e-8)
    assert np.array_equal(completed[:, :3], IMAGE[:, :3])
