"""Derivatives of the equilibrium, against finite differences of it, derivatives of a long descent,
and those of the closed form.

One program has the derivatives backwards, of several problems at once, and another one those
forwards, with the value itself.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_helpers import Mix
from helpers import assert_close, make_problem

import jpc

TIGHT = jpc.Equilibrium(rtol=1e-12, throw=False)
SIZES, BATCH = (2, 3, 3, 2), 3
GRAPH = {"h": ("x",), "k": ("h", "x"), "y": ("k", "h")}
WIDTHS = dict(x=2, h=3, k=3, y=2)


def draw(seed):
    """What there is to differentiate by: weights, what is given, and precisions."""
    rng = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape))
    params = {
        name: Mix([array(WIDTHS[name], WIDTHS[p]) for p in parents], array(WIDTHS[name]))
        for name, parents in GRAPH.items()
    }
    precision = {"k": jnp.exp(0.5 * array(3)), "y": jnp.exp(0.5 * array())}
    return {
        "weights": params,
        "input": array(BATCH, 2),
        "output": array(BATCH, 2),
        "precision": precision,
    }


DRAWS = [draw(seed) for seed in range(3)]
MASK = jnp.asarray([[True, False], [True, True], [False, True]])


def posed(args):
    """A graph with a skip connection, and an output that is given in part."""
    energy = jpc.GraphEnergy(GRAPH, precision=args["precision"])
    given = {"x": args["input"], "y": args["output"]}
    return energy, args["weights"], *jpc.pose(energy, args["weights"], given, masks={"y": MASK})


def measure(nodes, scale=1.0):
    """Some function of the answer."""
    h, k, y = nodes["h"], nodes["k"], nodes["y"]
    return scale * (jnp.sum(jnp.sin(h)) + jnp.sum(h[:, :2] * k[:, 1:]) + jnp.sum(y**2))


def settled(args, scale=1.0):
    return measure(TIGHT(*posed(args)).nodes, scale)


def stack(trees):
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


@pytest.fixture(scope="module")
def backwards():
    """Gradients of all draws at once, in units of the measure."""
    gradient = jax.jit(jax.vmap(jax.grad(settled), in_axes=(0, None)))
    return lambda scale: jax.tree.map(lambda g: g / scale, gradient(stack(DRAWS), scale))


@pytest.fixture(scope="module")
def forwards():
    """The measure and its derivative in some direction."""
    return jax.jit(lambda args, along: jax.jvp(settled, (args,), (along,)))


def direction(args, name, seed=9):
    """A random one, of one of the arguments."""
    rng = np.random.default_rng(seed)
    random = lambda x: jnp.asarray(rng.normal(size=x.shape))
    return {n: jax.tree.map(random if n == name else jnp.zeros_like, x) for n, x in args.items()}


def dot(one, other):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)))


@pytest.mark.parametrize("which", range(len(DRAWS)))
@pytest.mark.parametrize("name", DRAWS[0])
def test_derivatives_are_finite_differences(backwards, forwards, name, which):
    args = DRAWS[which]
    along = direction(args, name)
    step = lambda h: jax.tree.map(lambda x, d: x + h * d, args, along)
    value = lambda h: forwards(step(h), along)[0]
    difference = (value(1e-5) - value(-1e-5)) / 2e-5
    _, forward = forwards(args, along)
    assert_close(forward, difference, rtol=1e-5, atol=1e-7)
    mine = jax.tree.map(lambda g: g[which], backwards(1.0))
    assert_close(dot(mine, along), forward, rtol=1e-9, atol=1e-9)


def test_derivatives_are_those_of_a_long_descent(backwards):
    def descended(args):
        energy, params, nodes, clamps = posed(args)
        total = lambda nodes: BATCH * energy(params, nodes, clamps)

        def step(nodes, _):
            grads = jax.grad(total)(nodes)
            return jax.tree.map(lambda z, g: z - 0.05 * g, nodes, grads), None

        return measure(jax.lax.scan(step, nodes, length=3000)[0])

    expected = jax.jit(jax.vmap(jax.grad(descended)))(stack(DRAWS))
    assert_close(backwards(1.0), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e12])
def test_derivatives_have_no_scale(backwards, scale):
    """Those of a small function are as good as those of a large one."""
    assert_close(backwards(scale), backwards(1.0), rtol=1e-8)


def test_a_mask_has_no_derivative(backwards):
    """What is not given has no influence, what is has some."""
    grads = np.asarray(backwards(1.0)["output"])
    assert np.all((grads == 0) == ~np.asarray(MASK))


@pytest.mark.slow
def test_a_linear_network_has_the_derivatives_of_its_closed_form():
    """Without a branch in the program, to rounding."""
    problem = make_problem("linear", (3, 4, 4, 2), gain=1.5)
    method, weights = jpc.Equilibrium(max_steps=0), problem.weights

    def model_of(weights):
        where = lambda model: [layer.layers[1].weight for layer in model]
        return eqx.tree_at(where, problem.model, weights)

    def solved(weights, x, y, precision):
        layers = [jpc.Layer(layer) for layer in model_of(weights)]
        energy = jpc.PCEnergy(precision=[1.0, 1.0, precision])
        nodes, clamps = jpc.pose(energy, layers, {0: x, 3: y})
        return method(energy, layers, nodes, clamps).nodes[1:-1]

    def closed(weights, x, y, precision):
        scaled = dict(output_energy_scaling=precision)
        return jpc.compute_linear_activity_solution(model_of(weights), x, y, **scaled)[:-1]

    def gradients(fn):
        of = lambda *args: sum(jnp.sum(jnp.sin(z)) for z in fn(*args))
        return jax.jit(jax.grad(of, argnums=(0, 1, 2, 3)))

    args = (weights, problem.x, problem.y, jnp.asarray(0.7))
    assert_close(gradients(solved)(*args), gradients(closed)(*args), rtol=1e-9, atol=1e-10)


# --- a part of the network, and second derivatives ---


def test_states_that_nothing_moves():
    """A free leaf has no error, whatever is given elsewhere; h = (V x + w y) / (1 + w^2)."""
    energy = jpc.GraphEnergy({"h": ["x"], "y": ["h"], "leaf": ["x"]})
    params = dict(h=lambda x: 2 * x, y=lambda h: 3 * h, leaf=lambda x: -x)
    x, y = jnp.ones((2, 1)), jnp.asarray([[1.0], [2.0]])

    def solved(x, y):
        posed = jpc.pose(energy, params, {"x": x, "y": y})
        nodes = jpc.Equilibrium(max_steps=0)(energy, params, *posed).nodes
        return jnp.sum(nodes["h"] ** 2) + jnp.sum(nodes["leaf"] ** 2)

    closed = lambda x, y: jnp.sum(((2 * x + 3 * y) / 10) ** 2) + jnp.sum(x**2)
    found, expected = (jax.jit(jax.grad(fn, argnums=(0, 1)))(x, y) for fn in (solved, closed))
    assert_close(found, expected)


@pytest.mark.slow
def test_second_derivatives():
    """Of x -> tanh(h) -> y, by finite differences of the first ones, which are tested above."""
    energy, params = jpc.GraphEnergy({"h": ["x"], "y": ["h"]}), dict(h=lambda x: x, y=jnp.tanh)

    def solved(x):
        given = {"x": jnp.full((1, 1), x), "y": 2 * jnp.ones((1, 1))}
        inferred = TIGHT(energy, params, *jpc.pose(energy, params, given))
        return inferred.nodes["h"][0, 0] ** 2

    slope = jax.jit(jax.grad(solved))
    difference = (slope(0.5 + 1e-4) - slope(0.5 - 1e-4)) / 2e-4
    assert_close(jax.jit(jax.hessian(solved))(0.5), difference, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="The rule does not know which units are held.")
def test_units_that_are_held_at_kinks_do_not_move():
    """Of x -> h -> y with predictions h = x and y = 2 |h|: h is (x + 2 y) / 5, or 0 if that is
    negative.
    """
    energy = jpc.GraphEnergy({"h": ["x"], "y": ["h"]})
    params = dict(h=lambda x: x, y=lambda h: 2 * jnp.abs(h))
    y = jnp.asarray([[1.0], [0.2], [-1.0]])  # The last one is held.

    def solved(x):
        posed = jpc.pose(energy, params, {"x": x, "y": y})
        return jnp.sum(jpc.Equilibrium(rtol=1e-10)(energy, params, *posed).nodes["h"])

    x = jnp.asarray([[0.7], [0.5], [0.3]])
    assert_close(solved(x), np.sum((np.asarray(x)[:2] + 2 * np.asarray(y)[:2]) / 5))
    assert_close(jax.grad(solved)(x), np.array([[0.2], [0.2], [0.0]]))


# --- parameters that a prediction closes over ---


class Closed(jpc.AbstractNetworkEnergy):
    """Its predictions are functions that know their parameters, not modules that have them."""

    def network(self, params):
        return {
            "x": jpc.Node(precision=0.0),
            "h": jpc.Node(lambda x: params["h"] @ x, ("x",)),
            "y": jpc.Node(lambda h: params["y"] @ h, ("h",)),
        }


def test_predictions_may_close_over_their_parameters():
    """In a linear network x -> h -> y, h = (1 + W^T W)^-1 (V x + W^T y)."""
    rng = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape))
    params, x, y = {"h": array(3, 2), "y": array(2, 3)}, array(4, 2), array(4, 2)
    method = jpc.Equilibrium(max_steps=0)

    def solved(params):
        posed = jpc.pose(Closed(), params, {"x": x, "y": y})
        return method(Closed(), params, *posed).nodes["h"]

    def closed(params):
        V, W = params["h"], params["y"]
        return jnp.linalg.solve(jnp.eye(3) + W.T @ W, V @ x.T + W.T @ y.T).T

    assert_close(solved(params), closed(params))
    found, expected = (
        jax.jit(jax.grad(lambda p, fn=fn: jnp.sum(jnp.sin(fn(p)))))(params)
        for fn in (solved, closed)
    )
    assert_close(found, expected, atol=1e-9)
