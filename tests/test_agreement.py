"""Every method of inference finds the same equilibrium, in the states or in the errors: the
same energy, activities and learning gradient. The oracle is a long loop of gradient steps.

Compiling takes longer than running: problems that differ in numbers only share compilations,
also with those of `test_equilibrium.py`.
"""

import functools as ft

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
import pytest
from helpers import arrays, assert_close, infer, make_conv_problem, make_problem, slowly

import jpc

TIGHT = dict(rtol=1e-8, atol=1e-8)
METHODS = {
    "equilibrium": jpc.Equilibrium(rtol=1e-9),
    "flow": jpc.GradientFlow(dfx.Tsit5(), 500.0, controller=dfx.PIDController(**TIGHT)),
    "sgd": jpc.Descent(optax.sgd(0.2), 10_000, rtol=1e-9),
    "lbfgs": jpc.Descent(optax.lbfgs(), 500, rtol=1e-9),
    "bfgs": jpc.Minimise(optx.BFGS(**TIGHT)),
    "nonlinear cg": jpc.Minimise(optx.NonlinearCG(**TIGHT), together=True),
}


# --- problems: an energy, layers, and a feedforward start ---


@eqx.filter_jit
def _pose(layers, y, x, free=False):
    hidden = jax.vmap(lambda z: jpc.feedforward(layers, z))(x)[:-1]
    return jpc.clamp([x, *hidden], y) if free else jpc.clamp(hidden, y, x)


def _mlp(act, sizes, precisions, *, loss=jpc.squared_error, prior=None, trained=False):
    problem = make_problem(act, sizes)
    layers = _train(problem.layers, problem.x, problem.y) if trained else problem.layers
    energy = jpc.PCEnergy(loss, [jnp.asarray(p) for p in precisions])
    energy = energy if prior is None else energy + jpc.GaussianPrior(jnp.asarray(prior))
    return energy, layers, *_pose(layers, problem.y, problem.x, free=prior is not None)


@eqx.filter_jit
def _train(layers, x, y, steps=40):
    """Predictive coding the usual way: not to equilibrium."""
    energy, optim, descent = jpc.PCEnergy(), optax.adam(1e-2), jpc.Descent(optax.sgd(0.1), 10)
    weights, rest = eqx.partition(layers, eqx.is_inexact_array)

    def step(carry, _):
        layers = eqx.combine(carry[0], rest)
        nodes, clamps = _pose(layers, y, x)
        nodes = descent(energy, layers, nodes, clamps).nodes
        learned = jpc.learn(energy, layers, nodes, clamps, optim=optim, opt_state=carry[1])
        return (eqx.filter(learned.params, eqx.is_inexact_array), learned.opt_state), None

    (weights, _), _ = jax.lax.scan(step, (weights, optim.init(weights)), length=steps)
    return eqx.combine(weights, rest)


def _conv():
    problem = make_conv_problem()
    return jpc.PCEnergy(), problem.layers, *_pose(problem.layers, problem.y, problem.x)


# The output is larger than the input, but for the images.
TANH = ft.partial(_mlp, "tanh", (2, 4, 4, 5))
FREE = ft.partial(_mlp, "gelu", (2, 3, 4), (1.0, 2.0), loss=jpc.cross_entropy, prior=1.0)
PROBLEMS = {
    "tanh": ft.partial(TANH, (1.0, 1.0, 1.0)),
    "tanh, trained": ft.partial(TANH, (1.0, 1.0, 1.0), trained=True),
    "tanh, precisions": ft.partial(TANH, (2.0, 0.5, 0.3)),
    "gelu, free z_0, cross-entropy": FREE,
    "gelu, free z_0, cross-entropy, trained": ft.partial(FREE, trained=True),
    "convolutions": _conv,
}


@ft.cache
def pose(name):
    return PROBLEMS[name]()


# --- what there is to agree about ---


@eqx.filter_jit
def _report(energy, layers, nodes, clamps, lesson):
    """The energy, the states and the learning gradient at the end of inference."""
    grads = eqx.filter_grad(lesson[0])(layers, lesson[1], clamps)
    return energy(layers, nodes, clamps), nodes, grads


@eqx.filter_jit
def _descend(energy, layers, nodes, clamps):
    """Gradient descent, and the gradient where it ends."""
    grad = lambda z: jax.grad(energy, argnums=1)(layers, z, clamps)
    step = lambda _, z: jax.tree.map(lambda z, g: z - 0.2 * len(z) * g, z, grad(z))
    nodes = jax.lax.fori_loop(0, 3000, step, nodes)
    return nodes, grad(nodes)


@ft.cache
def expected(name):
    energy, layers, nodes, clamps = pose(name)
    nodes, gradient = _descend(energy, layers, nodes, clamps)
    assert_close(gradient, jax.tree.map(np.zeros_like, gradient), atol=1e-13)
    return _report(energy, layers, nodes, clamps, (energy, nodes))


@eqx.filter_jit
def _states(layers, nodes, clamps):
    """The states that belong to errors."""
    z, states = eqx.combine(nodes, clamps)[0], []
    for layer, error in zip(layers, nodes[1:-1], strict=False):
        z = jax.vmap(layer)(z) + error
        states.append(z)
    return [nodes[0], *states, None]


def answer(method, name, coordinates):
    energy, layers, nodes, clamps = pose(name)
    start, used = nodes, energy
    if coordinates == "errors":
        start = [nodes[0], *(jnp.zeros_like(z) for z in nodes[1:-1]), None]
        used = jpc.EPCEnergy(energy)
    inferred = infer(METHODS[method], used, layers, start, clamps)
    assert np.all(inferred.result == jpc.RESULTS.successful)
    end = inferred.nodes if used is energy else _states(layers, inferred.nodes, clamps)
    return _report(energy, layers, end, clamps, inferred.lesson or (used, inferred.nodes))


COVER = {
    ("equilibrium", "states"): ["tanh", "gelu"],
    ("equilibrium", "errors"): ["convolutions"],
    ("flow", "states"): ["tanh"],
    ("sgd", "states"): ["gelu"],
    ("sgd", "errors"): ["tanh", "gelu"],
    ("lbfgs", "errors"): ["gelu"],
    ("bfgs", "states"): ["tanh"],
    ("nonlinear cg", "states"): ["convolutions"],
    ("nonlinear cg", "errors"): ["tanh"],
}
SELDOM = {"nonlinear cg", "sgd", "lbfgs"}  # Other tests have them, too.


def seldom(method, name, coordinates):
    """`test_equilibrium.py` has networks with a tanh."""
    known = method == "equilibrium" and coordinates == "states" and name.startswith("tanh")
    return known or method in SELDOM


CASES = [
    (slowly if seldom(method, name, coordinates) else pytest.param)(method, name, coordinates)
    for (method, coordinates), kinds in COVER.items()
    for name in PROBLEMS
    if name.partition(",")[0] in kinds
]


@pytest.mark.parametrize(("method", "name", "coordinates"), CASES)
def test_methods_agree(method, name, coordinates):
    got, best = answer(method, name, coordinates), expected(name)
    assert_close(arrays(got), arrays(best), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_flat_prior_leaves_the_energy_of_the_others():
    """Without a prior many states are at equilibrium, all with the same energy."""
    energy, layers, nodes, clamps = _mlp("gelu", (3, 2, 4), (1.0, 1.0), prior=0.0)
    value = eqx.filter_jit(lambda nodes: energy(layers, nodes, clamps))
    ends = [
        infer(method, energy.first, layers, nodes, clamps)
        for method in (jpc.Equilibrium(rtol=1e-6), METHODS["bfgs"])
    ]
    assert all(np.all(end.result == jpc.RESULTS.successful) for end in ends)
    assert_close(value(ends[0].nodes), value(ends[1].nodes), rtol=0, atol=1e-6)
