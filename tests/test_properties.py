"""What holds for every network: shapes, depths, kinds of layers, losses, precisions, clamps and
masks are drawn at random, for chains and for graphs.

The suite has a few examples, always the same ones. For more, and other ones each time:

    JPC_EXAMPLES=500 python -m pytest -m slow tests/test_properties.py
"""

import functools as ft
import math
import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from helpers import assert_close, to
from hypothesis import HealthCheck, Phase, event, given, settings, strategies as st

import jpc

MORE = int(os.environ.get("JPC_EXAMPLES", "0"))
COMMON = dict(deadline=None, suppress_health_check=[*HealthCheck], database=None)


def examples(count):
    """A few that are always the same; or many, and the smallest that fails."""
    if MORE:
        return settings(max_examples=MORE, print_blob=True, **COMMON)
    phases = [Phase.explicit, Phase.generate]
    return settings(max_examples=count, derandomize=True, phases=phases, **COMMON)


# --- networks ---

SMOOTH = ["tanh", "gelu", "sigmoid"]
ACTS = [*SMOOTH, "linear", "relu", "leaky_relu"]
_FUNCTIONS = dict(
    tanh=jnp.tanh,
    gelu=jax.nn.gelu,
    sigmoid=jax.nn.sigmoid,
    linear=lambda z: z,
    relu=jax.nn.relu,
    leaky_relu=jax.nn.leaky_relu,
)


def _squash(z):
    return 1 / (1 + np.exp(-z))


# Each with what makes targets for it of normal numbers.
LOSSES = {
    jpc.squared_error: lambda z: z,
    jpc.huber: lambda z: 2 * z,
    jpc.cross_entropy: lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True),
    jpc.bernoulli: _squash,
    jpc.poisson: lambda z: np.floor(np.exp(z)),
}


class Dense(eqx.Module):
    """W phi(z) + b of all that enters, whatever its shape, as an array of some shape."""

    weight: jax.Array
    bias: jax.Array | None
    act: str = eqx.field(static=True)
    shape: tuple = eqx.field(static=True)

    def __call__(self, *z):
        whole = jnp.concatenate([jnp.ravel(_FUNCTIONS[self.act](part)) for part in z])
        out = self.weight @ whole
        return jnp.reshape(out if self.bias is None else out + self.bias, self.shape)


class Conv(eqx.Module):
    conv: eqx.nn.Conv2d
    act: str = eqx.field(static=True)

    def __call__(self, z):
        return self.conv(_FUNCTIONS[self.act](z))


class Kind(NamedTuple):
    """Of a layer, and of the state that it predicts."""

    act: str
    loss: Any
    bias: bool
    convolves: bool
    skips: bool
    scale: float
    precision: float | None  # `None`: one for each unit.


class Plan(NamedTuple):
    """All that is drawn by Hypothesis: numbers are drawn from the seed."""

    seed: int
    batch: int
    chain: bool
    shapes: list
    parents: dict
    given: dict  # "whole", "part" or "no".
    kinds: dict
    prior: float
    decay: bool
    factor: float | None


@st.composite
def plans(draw, acts=ACTS, losses=tuple(LOSSES)):
    one_of, flag = (lambda *values: draw(st.sampled_from(values))), (lambda: draw(st.booleans()))
    chain, count = flag(), draw(st.integers(2, 4))
    images = [(1, 2, 2), (2, 2, 2), (3,)] if chain and flag() else [(1,), (2,), (3,)]
    earlier = lambda i: st.sets(st.integers(0, i - 1), min_size=1)
    parents = {i: [i - 1] if chain else sorted(draw(earlier(i))) for i in range(1, count)}
    ends = {0, *range(count)} - {p for given in [*parents.values()] for p in given if p}
    often = {True: ("whole", "part", "no"), False: ("no", "no", "no", "whole", "part")}
    given = {i: one_of(*often[i in ends]) for i in range(count)}
    given[count - 1] = {"no": "whole", "whole": "part"}.get(
        next(iter({*given.values()})) if len({*given.values()}) == 1 else "", given[count - 1]
    )
    kinds = {
        i: Kind(
            one_of(*acts),
            one_of(*losses) if given[i] != "no" and i in ends else jpc.squared_error,
            *(flag(), flag(), flag()),
            one_of(1.0, 0.5),
            one_of(1.0, 0.3, 3.0, None),
        )
        for i in parents
    }
    shapes = [one_of(*images) for _ in range(count)]
    seed, batch = draw(st.integers(0, 2**32 - 1)), draw(st.integers(2, 3))
    scale = one_of(1.0, 0.5), flag(), one_of(None, 0.5, 2.0)
    return Plan(seed, batch, chain, shapes, parents, given, kinds, *scale)


def make_layer(kind, shapes, shape, normal):
    """A callable that makes an array of one shape from those of others."""
    if kind.convolves and len(shapes) == 1 and len(shape) == len(shapes[0]) == 3:
        named = dict(padding=1, use_bias=kind.bias, key=jr.key(0))
        conv = eqx.nn.Conv2d(shapes[0][0], shape[0], 3, **named)
        draw = lambda x: 0.3 * normal(*x.shape) if eqx.is_array(x) else x
        layer = Conv(jax.tree.map(draw, conv), kind.act)
    else:
        enters, leaves = sum(map(math.prod, shapes)), math.prod(shape)
        weight = 0.8 * normal(leaves, enters) / enters**0.5
        layer = Dense(weight, normal(leaves) if kind.bias else None, kind.act, shape)
    if kind.skips and shapes == [shape]:
        return jpc.Layer(layer, eqx.nn.Identity(), kind.scale)
    return layer


def build(plan):
    """An energy, parameters, nodes and clamps. Every state that is inferred has a finite
    variance, so that there is an equilibrium.
    """
    if MORE:
        jax.clear_caches()  # Programs of hundreds of networks take gigabytes.
    rng, shapes, kinds = np.random.default_rng(plan.seed), plan.shapes, plan.kinds
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))
    name = (lambda i: i) if plan.chain else "abcd".__getitem__
    named = lambda by_number: {name(i): value for i, value in by_number.items()}
    params, precise, states = {}, {}, {0: normal(plan.batch, *shapes[0])}
    for i, kind in kinds.items():
        params[i] = make_layer(kind, [shapes[p] for p in plan.parents[i]], shapes[i], normal)
        each = kind.precision is None and kind.loss is jpc.squared_error
        units = jnp.asarray(rng.uniform(0.3, 3.0, size=shapes[i]))
        precise[i] = units if each else kind.precision or 1.0
        states[i] = jnp.asarray(LOSSES[kind.loss](rng.normal(size=(plan.batch, *shapes[i]))))
    masks = {i: normal(*states[i].shape) > 0 for i, how in plan.given.items() if how == "part"}
    if plan.chain:
        energy = jpc.PCEnergy(kinds[len(kinds)].loss, [*precise.values()])
        energy, params = energy + jpc.GaussianPrior(plan.prior), [*params.values()]
    else:
        parents = named({i: [*map(name, given)] for i, given in plan.parents.items()})
        losses = named({i: kind.loss for i, kind in kinds.items()})
        precision = named(precise | {0: plan.prior})
        energy, params = jpc.GraphEnergy(parents, loss=losses, precision=precision), named(params)
    energy = energy + jpc.WeightDecay(0.1) if plan.decay else energy
    energy = energy if plan.factor is None else plan.factor * energy
    given = named({i: states[i] for i, how in plan.given.items() if how != "no"})
    start = {name(0): states[0]} if plan.given[0] == "no" else {}
    nodes, clamps = jpc.pose(energy, params, given, masks=named(masks), start=start)
    return energy, params, jax.tree.map(lambda z: z + 0.3 * normal(*z.shape), nodes), clamps


# --- the energy and its gradients ---


@eqx.filter_jit
def report(energy, params, nodes, clamps):
    """For each example the energy and its gradient in the nodes; the learning gradient of all."""
    return _report(energy, params, nodes, clamps)


def _report(energy, params, nodes, clamps):
    of_nodes = jax.value_and_grad(energy.example, argnums=1)
    each, by_nodes = jax.vmap(ft.partial(of_nodes, params))(nodes, clamps)
    grads = eqx.filter_grad(energy)(params, nodes, clamps)
    return each, by_nodes, eqx.filter(grads, eqx.is_array)


def rows(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


def check_energies_and_gradients(plan, *, eagerly):
    energy, params, nodes, clamps = problem = build(plan)
    each, by_nodes, grads = found = report(*problem)
    rng = np.random.default_rng(plan.seed)
    normal = lambda tree: jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), tree)

    # Eager, which takes long, and in float32.
    if eagerly:
        assert_close(_report(*problem), found, rtol=1e-9, atol=1e-9)
    single = report(*to(jnp.float32, problem))
    assert {x.dtype for x in jax.tree.leaves(single)} == {jnp.dtype("float32")}
    scale = float(1 + max(jnp.max(jnp.abs(x)) for x in jax.tree.leaves(found)))
    assert_close(single, found, rtol=0, atol=2e-5 * scale)

    # Another order of the examples; and another example beside the first one.
    order = rng.permutation(len(each))
    *moved, same = report(energy, params, *rows((nodes, clamps), order))
    assert_close(moved, rows((each, by_nodes), order), rtol=1e-9, atol=1e-9)
    assert_close(same, grads, rtol=1e-9, atol=1e-9)
    alone = np.r_[0, [len(each) - 1] * (len(each) - 1)]
    beside = report(energy, params, *rows((nodes, clamps), alone))
    assert_close(rows(beside[:2], 0), rows((each, by_nodes), 0), rtol=1e-9, atol=1e-9)

    # Finite differences along a line, in the nodes and in the parameters.
    weights, rest = eqx.partition(params, eqx.is_array)
    lines = normal(nodes), normal(weights)

    def energy_at(h):
        z, w = jax.tree.map(lambda x, v: x + h * v, (nodes, weights), lines)
        return report(energy, eqx.combine(w, rest), z, clamps)[0]

    slopes = (energy_at(1e-6) - energy_at(-1e-6)) / 2e-6
    dot = lambda a, b: sum(
        jnp.vdot(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    expected = dot(by_nodes, lines[0]) / len(each) + dot(grads, lines[1])
    assert_close(jnp.mean(slopes), expected, rtol=1e-5, atol=1e-5 * scale)


@examples(5)
@given(plans())
def test_energies_and_gradients(plan):
    check_energies_and_gradients(plan, eagerly=False)


@pytest.mark.slow
@examples(15)
@given(plans())
def test_energies_and_gradients_of_more(plan):
    check_energies_and_gradients(plan, eagerly=True)


# --- equilibria ---


@eqx.filter_jit
def descend(energy, params, nodes, clamps, steps=4000):
    """The end of plain gradient descent, with momentum and a step that is short enough."""
    batch = len(jax.tree.leaves(nodes)[0])
    gradient = lambda z: jax.tree.map(
        lambda g: batch * g, jax.grad(energy, argnums=1)(params, z, clamps)
    )
    optim = optax.sgd(0.03, 0.9)

    def step(_, carry):
        z, state = carry
        updates, state = optim.update(gradient(z), state)
        return optax.apply_updates(z, updates), state

    nodes, _ = jax.lax.fori_loop(0, steps, step, (nodes, optim.init(nodes)))
    return nodes, gradient(nodes)


SOLVABLE = plans(SMOOTH, (jpc.squared_error, jpc.cross_entropy, jpc.bernoulli))


def check_that_an_equilibrium_is_where_descent_ends(plan):
    """Where both have got there: in float64 that is nearly always."""
    energy, params, _, clamps = problem = build(plan)
    end, gradient = descend(*problem)
    settled = max(jnp.max(jnp.abs(g)) for g in jax.tree.leaves(gradient)) < 1e-9
    inferred = jpc.Equilibrium(rtol=1e-8)(*problem)
    done = np.asarray(inferred.result == jpc.RESULTS.successful)
    event(f"settled: {settled}, successful: {done.all()}")
    assert settled and done.all()
    hide = lambda nodes: jpc.states(nodes, clamps)
    assert_close(hide(inferred.nodes), hide(end), rtol=0, atol=1e-6)
    lesson, states = inferred.lesson or (energy, inferred.nodes)
    learned = eqx.filter_jit(eqx.filter_grad(lesson))(params, states, clamps)
    expected = report(energy, params, end, clamps)[2]
    assert_close(eqx.filter(learned, eqx.is_array), expected, rtol=0, atol=1e-5)


@examples(2)
@given(SOLVABLE)
def test_an_equilibrium_is_where_descent_ends(plan):
    check_that_an_equilibrium_is_where_descent_ends(plan)


@pytest.mark.slow
@examples(6)
@given(SOLVABLE)
def test_more_equilibria_are_where_descent_ends(plan):
    check_that_an_equilibrium_is_where_descent_ends(plan)
