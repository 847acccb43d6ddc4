"""Rules of learning in the place of inference."""

import functools as ft
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import arrays, assert_close, make_problem
from variants import BITS, ENERGIES, HEADS, MODEL, PRECISE, X, Y, chain

import jpc

DECAY = 0.3
EQUAL = {
    "backprop": jpc.Backprop(),
    "fixed prediction": jpc.FixedPrediction(),
    "Z-IL": jpc.ZIL(),
    "nudged loss": jpc.Nudged(kind="loss"),
}


def gradient(rule, energy, params, given):
    """What is learned."""
    nodes, clamps = given
    inferred = rule(energy, params, nodes, clamps)
    lesson, states = inferred.lesson or (energy, inferred.nodes)
    return _learn(lesson, params, states, clamps), inferred


@eqx.filter_jit
def _learn(lesson, params, states, clamps):
    return eqx.filter_grad(lambda p: lesson(p, states, clamps))(params)


def of_loss(energy, params, given):
    """By `jax.grad` of the energy at the feedforward states, which move with the parameters."""
    clamps = given[1]

    @eqx.filter_jit
    @eqx.filter_grad
    def grad(params):
        if isinstance(clamps, dict):
            known = {name: c for name, c in clamps.items() if c is not None}
            nodes, _ = jpc.pose(energy, params, known)
        else:
            z = [clamps[0], *jpc.feedforward_batch(params, clamps[0])]
            free = [n is not None for n in given[0]]
            nodes = [state if f else None for state, f in zip(z, free, strict=True)]
        return energy(params, nodes, clamps)

    return grad(params)


def close(one, other, tolerance=1e-12):
    assert_close(arrays(one), arrays(other), rtol=tolerance, atol=tolerance)


CASES = [(rule, "graph") for rule in EQUAL] + [
    ("backprop", "penalties"),
    ("fixed prediction", "masked"),
    ("Z-IL", "mupc"),
]


@pytest.mark.parametrize(("rule", "name"), CASES)
def test_equal_to_backpropagation(rule, name):
    rule = EQUAL[rule]
    variant = ENERGIES[name]
    found, inferred = gradient(rule, variant.energy, variant.params, variant.given)
    close(found, of_loss(variant.energy, variant.params, variant.given))
    assert np.all(inferred.result == jpc.RESULTS.successful)


@pytest.mark.parametrize(("steps", "dt"), [(1, 1.0), (3, 0.5), (4, 0.01)])
def test_errors_come_as_far_as_they_have_time_for(steps, dt):
    """Those of the last hidden state are held back by nothing else: after n steps they are
    $1 - (1 - h)^n$ of what backpropagation says, and so is what its layer learns. The last layer
    learns all of it.
    """
    problem = make_problem(act="linear", batch=3)
    given = chain(problem.model, problem.y, problem.x, problem.x)
    found, _ = gradient(jpc.FixedPrediction(steps, dt), jpc.PCEnergy(), problem.model, given)
    whole = arrays(of_loss(jpc.PCEnergy(), problem.model, given))
    part = 1 - (1 - dt) ** steps
    assert_close(arrays(found)[1:], [part * whole[1], whole[2]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dt", "converged"), [(0.9, True), (0.5, False), (1.5, False)])
def test_errors_know_how_far_they_are_off(dt, converged):
    """With one hidden state, after n steps by $(1 - h)^n$ of what they should be: relative to what
    they are that is $r / (1 - r)$, by its size.
    """
    problem = make_problem(sizes=(2, 4, 2), act="linear", batch=3)
    given = chain(problem.model, problem.y, problem.x, problem.x)
    found = jpc.FixedPrediction(3, dt)(jpc.PCEnergy(), problem.model, *given)
    rest = (1 - dt) ** 3
    assert_close(found.stats["error"], np.full(3, abs(rest / (1 - rest))), rtol=1e-9)
    assert np.all((found.result == jpc.RESULTS.successful) == converged)
    assert np.all(found.stats["steps"] == 3) and np.all(found.stats["evaluations"] == 4)


RULES = pytest.mark.parametrize("rule", ["backprop", "fixed prediction", "Z-IL"])


@RULES
def test_the_precision_of_what_is_given_is_learned(rule):
    """As `jax.grad` says. That of a hidden state has no errors to be learned from."""
    energy, given = jpc.PrecisionEnergy(), chain(MODEL, Y, X, X)
    last = [*MODEL[:2], PRECISE[2]]
    found, _ = gradient(EQUAL[rule], energy, last, given)
    close(found, of_loss(energy, last, given))
    with pytest.raises(ValueError, match="precision of the state 1"):
        gradient(EQUAL[rule], energy, [PRECISE[0], *MODEL[1:]], given)


@pytest.mark.parametrize(
    ("rule", "steps", "evaluations"),
    [(EQUAL["Z-IL"], 2, 3), (jpc.Nudged(), 1, 2), (jpc.Nudged(chords=3), 3, 4)],
)
def test_steps_of_a_rule_are_counted(rule, steps, evaluations):
    """By Z-IL errors go back through two hidden layers, one at each step; a chord is a step. Each
    begins with a look at the errors.
    """
    stats = rule(jpc.PCEnergy(), MODEL, *chain(MODEL, Y, X, X)).stats
    assert np.all(stats["steps"] == steps) and np.all(stats["evaluations"] == evaluations)


def test_limit_is_the_closed_form_of_a_linear_network():
    """With a precision for the output and for a hidden layer, and a penalty, against NumPy."""
    problem = make_problem(act="linear", batch=3)
    p, c = [0.7, 2.0, 1.3], 0.2
    energy = jpc.PCEnergy(precision=p) + jpc.WeightDecay(c)
    x, y = problem.x, problem.y
    given = chain(problem.model, y, x, x)
    W = [np.asarray(w) for w in arrays(problem.model)]
    A = W[2] @ W[2].T / p[1] + W[2] @ W[1] @ W[1].T @ W[2].T / p[0]
    z = [np.asarray(x)]
    for w in W:
        z.append(z[-1] @ w.T)
    for strength in (None, 2.0):
        factor = 1.0 if strength is None else strength / (p[2] * np.trace(A) / 2)
        S = np.eye(2) + factor * p[2] * A
        lam = np.linalg.solve(S, p[2] * (np.asarray(y) - z[-1]).T).T
        expected = [
            -(lam @ W[2] @ W[1]).T @ z[0] / 3 + c * W[0],
            -(lam @ W[2]).T @ z[1] / 3 + c * W[1],
            -lam.T @ z[2] / 3 + c * W[2],
        ]
        rule = jpc.Nudged(strength=strength, shared=2)
        found, inferred = gradient(rule, energy, problem.model, given)
        assert_close(arrays(found), expected, rtol=1e-12, atol=1e-12)
        assert_close(inferred.stats["precision"], np.full(3, factor))
        assert np.all(inferred.result == jpc.RESULTS.successful)
        assert_close(inferred.stats["relaxed"], np.ones(3))


@pytest.mark.parametrize("name", [pytest.param("ce", marks=pytest.mark.slow), "graph"])
def test_finite_nudges_tend_to_the_limit(name):
    """Centred ones with an error of the second order, one-sided ones of the first; the penalty
    counts once. `beta` is traced, so that all of them are one program.
    """
    variant = ENERGIES[name]
    problem = (variant.energy + jpc.WeightDecay(DECAY), variant.params, variant.given)
    slowly = jpc.InErrors(jpc.Descent(0.3, 300))
    rule = ft.partial(jpc.Nudged, inference=slowly, strength=0.7, shared=None)
    limit, _ = gradient(jpc.Nudged(strength=0.7, shared=None), *problem)

    def distance(beta, sign):
        found, _ = gradient(rule(beta, sign=sign), *problem)
        return max(
            np.max(np.abs(a - b)) for a, b in zip(arrays(found), arrays(limit), strict=True)
        )

    far, near = distance(0.2, "centred"), distance(0.05, "centred")
    assert near < 1e-3 and near < far / 8
    if name == "graph":
        far, near = distance(0.2, "negative"), distance(0.05, "negative")
        assert near < 2e-2 and far / 8 < near < far / 2


def test_whole_error_is_plain_predictive_coding():
    variant = ENERGIES["ce"]
    problem = (variant.energy + jpc.WeightDecay(DECAY), variant.params, variant.given)
    method = jpc.Descent(0.1, 5)
    plain, _ = gradient(method, *problem)
    for kind in ("target", "loss"):
        rule = jpc.Nudged(1.0, kind=kind, sign="positive", inference=method)
        close(gradient(rule, *problem)[0], plain)


@pytest.mark.parametrize(("kind", "sign"), [("target", "centred"), ("loss", "negative")])
def test_the_problem_of_a_nudge_has_a_part_of_the_error(kind, sign):
    """At the feedforward pass, where it starts, the gradient is that part of the plain one."""
    energy, (nodes, clamps) = jpc.PCEnergy(), ENERGIES["ce"].given
    part = -0.2 if sign == "negative" else 0.2
    nudge, start, held = jpc.Nudged(0.2, kind=kind, sign=sign).problem(
        energy, MODEL, nodes, clamps
    )
    plain = jpc.feedforward_batch(MODEL, clamps[0])[:-1]
    expected = jax.grad(energy, argnums=1)(MODEL, [None, *plain, None], clamps)
    found = jax.grad(nudge, argnums=1)(MODEL, start, held)
    close(found, jax.tree.map(lambda g: part * g, expected), 1e-10)


def test_chords_find_what_each_example_needs():
    variant = ENERGIES["ce"]
    problem = (jpc.PCEnergy(jpc.cross_entropy, 3.0), MODEL, variant.given)
    own, _ = gradient(jpc.Nudged(shared=None), *problem)
    one = ft.partial(jpc.Nudged, shared=1, own=0, rtol=1e-2)
    once, said = gradient(one(), *problem)
    often, sure = gradient(one(chords=4), *problem)
    close(often, own, 1e-10)
    assert np.all(sure.result == jpc.RESULTS.successful)
    assert np.any(said.result == jpc.RESULTS.stopped_early)
    ready = eqx.filter_jit(jpc.Nudged.prepare)(one(), *problem[:2], *problem[2])
    close(gradient(ready, *problem)[0], once)


@pytest.mark.slow
def test_chords_come_closer_with_more_outputs_than_steps():
    """Of three outputs a chord leaves something to the next."""
    small = make_problem("tanh", (3, 4, 3))
    problem = (jpc.PCEnergy(jpc.cross_entropy, 3.0), small.layers, small.posed()[1:])
    own, _ = gradient(jpc.Nudged(shared=None), *problem)

    def gap(chords):
        found, _ = gradient(jpc.Nudged(shared=1, own=0, chords=chords), *problem)
        return max(np.max(np.abs(a - b)) for a, b in zip(arrays(found), arrays(own), strict=True))

    assert gap(2) < 0.1 * gap(1)


def test_each_example_has_its_own_part_of_the_last_states():
    """All of it, or nearly all where earlier states are precise."""
    given = ENERGIES["ce"].given
    soft = jpc.PCEnergy(jpc.cross_entropy, 3.0), MODEL, given
    whole, _ = gradient(jpc.Nudged(shared=None), *soft)
    _, said = gradient(jpc.Nudged(shared=1, own=0, rtol=1e-3), *soft)
    assert np.any(said.result == jpc.RESULTS.stopped_early)
    close(gradient(jpc.Nudged(shared=1, own=9), *soft)[0], whole)
    hidden = len(MODEL) - 1
    precisions = [*(1e4**k for k in reversed(range(hidden))), 3.0]
    stiff = jpc.PCEnergy(jpc.cross_entropy, precisions), MODEL, given
    last, sure = gradient(jpc.Nudged(shared=1, own=1, rtol=1e-3), *stiff)
    close(last, gradient(jpc.Nudged(shared=None), *stiff)[0], 1e-3)
    assert np.all(sure.result == jpc.RESULTS.successful)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jpc.Nudged(0.0), "beta must be a finite number above 0"),
        (lambda: jpc.Nudged(sign="negative"), r"such as Nudged\(0.1\)"),
        (lambda: jpc.Nudged(kind=cast(Any, "both")), "kind"),
        (lambda: jpc.FixedPrediction(dt=0.5), "steps=20"),
        (lambda: jpc.ZIL()(jpc.PCEnergy(), MODEL, *chain(input=None)), "nothing predicts it"),
        (lambda: jpc.Nudged()(jpc.PrecisionEnergy(), PRECISE, *chain()), "use Equilibrium"),
        (lambda: jpc.ZIL()(SKIPPING, LAYERS, *SKIPPED), "after 1 and 2 steps"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def both(h, y):
    return y + jnp.sum(h)


SKIPPING = jpc.GraphEnergy({"h": ["x"], "y": ["h"], "v": ["h", "y"]})
SKIPPED = jpc.pose(SKIPPING, (LAYERS := {**HEADS, "v": both}), {"x": X, "v": Y})


def test_steps_take_rules():
    """One step of training by a rule is that of its gradient."""
    optim = optax.sgd(1.0)
    state = optim.init(eqx.filter(MODEL, eqx.is_array))
    named: Any = dict(loss_id="bernoulli", weight_decay=DECAY)
    for rule in (jpc.Backprop(), jpc.FixedPrediction(3, 1.0)):
        new = jpc.make_pc_step(MODEL, optim, state, BITS, X, inference=rule, **named)
        energy = jpc.PCEnergy(jpc.bernoulli) + jpc.WeightDecay(DECAY)
        expected = of_loss(energy, MODEL, chain(output=BITS))
        close(new["model"], eqx.apply_updates(MODEL, jax.tree.map(jnp.negative, expected)))


def test_a_stiff_network_relaxes_in_its_last_hidden_layer():
    """Then A is that of the last hidden layer, and each example knows its own: all certified, by
    any matrix for the others.
    """
    problem = make_problem("tanh")
    nodes, clamps = problem.posed()[1:]
    rule = jpc.Nudged(strength=1.0)
    found = rule(jpc.PCEnergy(stiffness=1e8), problem.model, nodes, clamps)
    assert jnp.all(found.result == jpc.RESULTS.successful) and jnp.max(found.stats["error"]) < 1e-6

    def last(x, y):
        *_, z, yhat = [x, *jpc.feedforward(problem.model, x)]
        J = jax.jacobian(problem.model[-1])(z)
        return yhat, J @ J.T

    yhat, A = jax.vmap(last)(problem.x, problem.y)
    factor = A.shape[-1] / jnp.mean(jnp.trace(A, axis1=1, axis2=2))
    S = jnp.eye(A.shape[-1])[None] + factor * A
    lam = jnp.linalg.solve(S, (problem.y - yhat)[..., None])[..., 0]
    assert_close(found.lesson[1][-1][1], lam, rtol=1e-6)
