"""Equilibria of rectifier networks, where units sit at kinks. The oracles: the energy rises to
both sides of every unit (in plain NumPy), gradient descent with ever smaller steps, and
differences of the equilibrium energy itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import SIZES, arrays, infer, make_problem, slowly

import jpc
from jpc._energy import Unfolded
from jpc._energy.hold import held_error, hold
from jpc._inference.kinks import find_kinks, settle

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


def test_the_gradient_of_what_is_held_does_not_count():
    """How far an answer is off is the gradient of the units that are not at their kinks, relative
    to the states, also where little was asked for.
    """
    problem = PROBLEMS["small"]()
    inferred = solve(problem, jpc.Equilibrium(rtol=0.2, chords=0))
    below, above = (slopes(problem, inferred.nodes, side) for side in (-1e-13, 1e-13))
    free = [np.where(b - a < 1e-9, a, 0) for a, b in zip(below, above, strict=True)]
    norm = lambda parts: np.sqrt(sum(np.sum(np.square(z), axis=1) for z in parts))
    expected = norm(free) / norm(inferred.nodes[1:-1])
    assert np.max(expected) > 1e-3  # Else this test says little.
    np.testing.assert_allclose(inferred.stats["gradient_norm"], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bend", [0.0, 0.01, 1.6, -1.0])
def test_a_unit_that_is_held_is_at_rest(bend):
    """F(z) = p / 2 (z - m)^2 - g z to the right of zero, and with `bend` g to the left of it."""
    m, g, p = np.random.default_rng(0).normal(size=(3, 1000))
    p = np.abs(p) + 0.1
    side = lambda z: np.where(z > 0, 1.0, bend)
    error = jnp.zeros_like(m)
    for _ in range(3):
        z, pull = jax.vjp(lambda error: hold(bend, jnp.asarray(m), error, jnp.asarray(p)), error)
        error = pull(g * side(z))[0] / p
    z = m + held_error(bend, jnp.asarray(m), error)
    at_zero = np.abs(z) < 1e-12
    left, right = (p * (z - m) - g * side(np.where(at_zero, x, z)) for x in (-1, 1))
    assert np.all(left <= 1e-12) and np.all(right >= -1e-12)
    assert 10 < np.sum(at_zero) < 900


def test_iterations_that_hold_units_converge():
    """Also with a matrix that is not their own, where hops would go on for ever."""
    problem = PROBLEMS["small"]()
    inferred = solve(problem, jpc.Equilibrium(rtol=1e-7, chords=20, max_steps=0))
    assert np.all(np.asarray(inferred.result == jpc.RESULTS.successful))
    z = [np.where(np.abs(z) < 1e-5, 0, z) for z in inferred.nodes[1:-1]]
    left, right = (slopes(problem, [None, *z, None], side) for side in (-1e-13, 1e-13))
    for below, above in zip(left, right, strict=True):
        assert np.all(below <= 1e-4) and np.all(above >= -1e-4)


def kinks_of(*fns, parents=None):
    """Of a chain, or of a graph."""
    given = parents or {i + 1: (i,) for i in range(len(fns))}
    network = {0: jpc.Node()} | {
        name: jpc.Node(fn, tuple(given[name])) for name, fn in zip(given, fns, strict=True)
    }
    last = max(network)
    nodes, clamps = (
        {n: jnp.ones(4) if (n in (0, last)) == fixed else None for n in network}
        for fixed in (False, True)
    )
    return find_kinks(*Unfolded.of(network, nodes, clamps))


@pytest.mark.parametrize(("slopes", "bends"), [((0.01, 0.02), {}), ((0.02, 0.02), {1: 0.02})])
def test_slopes_that_differ_are_not_one(slopes, bends):
    """Even if all of them are small."""
    leak = lambda z: jnp.concatenate(
        [jax.nn.leaky_relu(*of) for of in zip(z.reshape(2, 2), slopes, strict=True)]
    )
    kind, found = kinks_of(lambda z: 2 * z, leak)
    assert kind == ("held" if bends else "rectifiers") and found == pytest.approx(bends)


def test_what_cannot_be_tried_out_is_not_held():
    """A loop of unknown length has no backward pass."""
    twice = lambda z: jax.lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, 2 * c[1]), (0, z)
    )[1]
    assert kinks_of(lambda z: 2 * z, lambda z: twice(jax.nn.relu(z))) == ("rectifiers", {})


def test_which_kinks_can_be_held():
    linear = eqx.nn.Linear(4, 4, key=jr.key(0))
    first = lambda act: lambda z: linear(act(z))
    assert kinks_of(linear, first(jax.nn.relu)) == ("held", {1: 0.0})
    kind, bends = kinks_of(linear, first(jax.nn.leaky_relu), first(jax.nn.relu))
    assert kind == "held" and np.allclose([bends[1], bends[2]], [0.01, 0])
    assert kinks_of(linear, first(jnp.tanh)) == ("none", {})
    assert kinks_of(first(jax.nn.relu), linear) == ("none", {})  # Of what is given.
    others = [
        (linear, first(jax.nn.hard_tanh)),  # Its kinks are not at zero,
        (linear, lambda z: jax.nn.relu(linear(z))),  # nor are these.
        (linear, lambda z: linear(jax.nn.relu(z)) + z),  # By how much depends on the gradient.
    ]
    for fns in others:
        assert kinks_of(*fns) == ("rectifiers", {})
    both = {1: (0,), 2: (1,), 3: (1, 2)}
    both_ways = kinks_of(linear, first(jax.nn.relu), lambda a, b: linear(a + b), parents=both)
    assert both_ways == ("rectifiers", {})
    pool = lambda z: linear(jnp.tile(jnp.max(jnp.sort(z).reshape(2, 2), axis=1), 2))
    assert kinks_of(linear, pool)[0] == "others"


def test_newton_takes_one_step_on_a_square_and_one_to_see_it():
    potential = lambda z: 0.5 * jnp.sum((z - 3) ** 2)
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(0.0))
    start, active = jnp.ones(2), jnp.asarray(True)
    z, gap, steps = settle(potential, start, active, **named)
    assert np.allclose(z, 3) and gap <= 1e-9 and steps == 2
    z, gap, steps = settle(potential, start, active, **named, max_steps=1)
    assert np.allclose(z, 3) and np.isclose(gap, 8**0.5) and steps == 1
