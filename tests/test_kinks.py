"""Equilibria of rectifier networks, where units sit at kinks. The oracles: the energy rises to
both sides of every unit (in plain NumPy), gradient descent with ever smaller steps, and
differences of the equilibrium energy itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SIZES, arrays, infer, make_problem, slowly

import jpc
from jpc._inference.kinks import settle

EXACT = jpc.Equilibrium(rtol=1e-9)
PROBLEMS = {
    "small": lambda: make_problem("relu", SIZES, batch=8),
    "weights x 3": lambda: make_problem("relu", SIZES, gain=3.0, batch=8, seed=1),
    "wide": lambda: make_problem("relu", (6, 20, 20, 4), batch=8),
}


def pose(problem):
    hidden = jax.vmap(lambda z: jpc.feedforward(problem.layers, z))(problem.x)[:-1]
    return problem.layers, *jpc.clamp(hidden, problem.y, problem.x)


def solve(problem, method=EXACT):
    return infer(method, jpc.PCEnergy(), *pose(problem))


def slopes(problem, nodes, side):
    """The activity gradients next to where the units are: those at zero moved to a side."""
    states = [problem.x, *(np.asarray(z) for z in nodes[1:-1]), problem.y]
    moved = [np.where(np.abs(z) < 1e-12, side, z) for z in states[1:-1]]
    return problem.chain().activity_grads([states[0], *moved, states[-1]])[1:]


def learning_gradient(problem, inferred):
    energy, nodes = inferred.lesson
    _, _, clamps = pose(problem)
    return eqx.filter_grad(energy)(problem.layers, nodes, clamps)


every_problem = pytest.mark.parametrize("name", ["small", "weights x 3", slowly("wide")])


@every_problem
def test_the_energy_rises_to_both_sides_of_every_unit(name):
    problem = PROBLEMS[name]()
    inferred = solve(problem)
    assert np.all(np.asarray(inferred.result == jpc.RESULTS.successful))
    assert np.all(inferred.stats["gradient_norm"] <= 1e-8)
    below, above = (slopes(problem, inferred.nodes, side) for side in (-1e-13, 1e-13))
    at_kinks = 0
    for left, right in zip(below, above, strict=True):
        assert np.all(left <= 1e-8) and np.all(right >= -1e-8)
        at_kinks += np.sum(right - left > 1e-6)
    assert at_kinks >= 3


@every_problem
def test_gradient_descent_ends_at_the_same_place(name):
    """With a step size that shrinks: around a kink it hops as far as that lets it."""
    problem = PROBLEMS[name]()
    schedule = optax.exponential_decay(0.05, 1000, 0.6)
    hopping, exact = solve(problem, jpc.Descent(optax.sgd(schedule), 30_000)), solve(problem)
    example = lambda nodes, clamps: jpc.PCEnergy().example(problem.layers, nodes, clamps)
    energy = lambda nodes: np.asarray(jax.vmap(example)(nodes, pose(problem)[2]))
    assert np.all(energy(exact.nodes) <= energy(hopping.nodes) * (1 + 1e-14))
    assert np.allclose(energy(exact.nodes), energy(hopping.nodes), rtol=1e-6, atol=0)
    for one, other in zip(arrays(exact.nodes), arrays(hopping.nodes), strict=True):
        assert np.allclose(one, other, atol=1e-3)


def test_learning_follows_the_equilibrium_energy():
    """The learning gradient is that of the energy at equilibrium (the envelope theorem)."""
    problem = PROBLEMS["small"]()
    weights, rest = eqx.partition(problem.layers, eqx.is_array)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), weights)

    @eqx.filter_jit
    def equilibrium_energy(step):
        layers = eqx.combine(jax.tree.map(lambda w, d: w + step * d, weights, direction), rest)
        nodes, clamps = pose(problem)[1:]
        return jpc.PCEnergy()(layers, EXACT(jpc.PCEnergy(), layers, nodes, clamps).nodes, clamps)

    above, below = (equilibrium_energy(jnp.asarray(step)) for step in (1e-6, -1e-6))
    slope = (above - below) / 2e-6
    gradient = learning_gradient(problem, solve(problem))
    along = sum(jnp.vdot(g, d) for g, d in zip(arrays(gradient), arrays(direction), strict=True))
    assert np.isclose(along, slope, rtol=1e-5)


@pytest.mark.slow
def test_errors_are_coordinates_too():
    problem = PROBLEMS["small"]()
    layers, nodes, clamps = pose(problem)
    zeros = jax.tree.map(jnp.zeros_like, nodes)
    energy = jpc.EPCEnergy(jpc.PCEnergy())
    inferred = infer(EXACT, energy, layers, zeros, clamps)
    assert np.all(np.asarray(inferred.result == jpc.RESULTS.successful))
    states = solve(problem).nodes
    assert np.isclose(
        energy(layers, inferred.nodes, clamps), jpc.PCEnergy()(layers, states, clamps), rtol=1e-9
    )


def test_newton_takes_one_step_on_a_square_and_one_to_see_it():
    potential = lambda z: 0.5 * jnp.sum((z - 3) ** 2)
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(0.0))
    start, active = jnp.ones(2), jnp.asarray(True)
    z, gap, steps = settle(potential, start, active, **named)
    assert np.allclose(z, 3) and gap <= 1e-9 and steps == 2
    z, gap, steps = settle(potential, start, active, **named, max_steps=1)
    assert np.allclose(z, 3) and np.isclose(gap, 8**0.5) and steps == 1
