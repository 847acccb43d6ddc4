"""The pieces of inference, each by itself: dense matrices, closed forms and known limits are the
oracle. Together they forgive much: what one does badly, another makes up for, only slower.
"""

import dataclasses
import functools as ft
import itertools

import diffrax as dfx
import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from helpers import assert_close as same_trees

import jpc
from jpc import _gap as gap_module
from jpc._energy import Unfolded
from jpc._energy.loss import unfit
from jpc._gap import _relative as relative_gap, tolerance
from jpc._inference import equilibrium as equilibrium_module, relax as relax_module
from jpc._inference.backprop import _moments
from jpc._inference.chords import Chords, Found, Inverse, Matrix, energy_of, learn_from
from jpc._inference.equilibrium import _few_at_a_time
from jpc._inference.flow import _curvature, _relative, _without_padding
from jpc._inference.kinks import _at_kinks, _hold_near, _newton, _search, settle
from jpc._inference.mix import (
    Way,
    _back,
    _energy,
    _mix,
    _Pair,
    _part,
    _Step,
    _Try,
    begin,
    finish,
    go_on,
    until_all,
    until_together,
)
from jpc._inference.nudged import _shortest, _solve, _towards
from jpc._inference.relax import (
    _aim,
    _Memory,
    _Point,
    _Problem,
    _shorten,
    _step,
    at_least,
    blur_of,
    pick,
    relax,
)
from jpc._inference.sketch import Sketch
from jpc._inference.stages import _descent, futile, rms
from jpc._regime import relaxed_share
from jpc._solve import eigenvalues

NOTHING, INF, NAN = jnp.asarray(False), jnp.inf, jnp.nan


def numbers(*values):
    return jnp.asarray(values, float)


def assert_close(got, expected, **tolerances):
    """Of arrays, or of what is written like one."""
    same_trees(got, np.asarray(expected), **tolerances)


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


# --- a limited memory ---


def pushed(pairs, size=4):
    empty = jnp.zeros((relax_module._MEMORY, size))
    memory = _Memory(empty, empty, empty[:, 0])
    for s, y in pairs:
        memory = memory.push(jnp.asarray(s), jnp.asarray(y))
    return memory


def bfgs(inverse, pairs):
    """The inverse matrix after some pairs."""
    for s, y in pairs:
        rho, one = 1 / (s @ y), np.eye(len(s))
        left = one - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_memory_is_the_matrix_of_bfgs(count):
    curvature, start = np.diag([1.0, 2.0, 5.0, 0.3]), np.diag([1.0, 0.5, 2.0, 3.0])
    pairs = [(s, curvature @ s) for s in draw(0, count, 4)]
    gradient = draw(1, 4)
    found = pushed(pairs).direction(jnp.asarray(gradient), lambda q: jnp.asarray(start) @ q)
    assert_close(found, -bfgs(start, pairs) @ gradient)


def test_a_memory_forgets_what_is_oldest():
    pairs = [(s, 2 * s) for s in draw(2, relax_module._MEMORY + 2, 4)]
    kept = pushed(pairs)
    assert_close(kept.s, np.stack([s for s, _ in pairs[:1:-1]]))
    assert_close(kept.y, 2 * kept.s)
    assert_close(kept.rho, 0.5 / np.sum(np.square(kept.s), axis=1))


@pytest.mark.parametrize(("cosine", "kept"), [(1e-8, True), (1e-12, False), (-0.5, False)])
def test_a_memory_keeps_what_bends_upwards(cosine, kept):
    """Whatever the lengths of the two vectors are."""
    for a, b in ((1e6, 1e-3), (1e-3, 1e6)):
        s = a * numbers(1, 0, 0, 0)
        y = b * numbers(cosine, np.sqrt(1 - cosine**2), 0, 0)
        assert bool(jnp.any(pushed([(s, y)]).rho != 0)) == kept


# --- the problem of a descent, in one vector ---

WIDTHS = (2, 3, 4)


def chain(loss=jpc.squared_error, precisions=(2.0, 0.5), seed=0, flat=False):
    """A linear chain of one example in the coordinates of its errors; `flat`: with a free input
    that nothing predicts.
    """
    layers = [
        eqx.nn.Linear(n, m, use_bias=False, key=jr.key(0)) for n, m in itertools.pairwise(WIDTHS)
    ]
    weights = [draw(seed + i, *layer.weight.shape) for i, layer in enumerate(layers)]
    layers = [
        eqx.tree_at(lambda m: m.weight, m, jnp.asarray(w))
        for m, w in zip(layers, weights, strict=True)
    ]
    x, y = jnp.asarray(draw(seed + 5, 1, 2)), jax.nn.one_hot(jnp.array([1]), 4)
    hidden = jnp.asarray(draw(seed + 6, 1, 3))
    nodes, clamps = jpc.clamp([x, hidden], y) if flat else jpc.clamp([hidden], y, x)
    energy = jpc.PCEnergy(loss, precision=list(precisions))
    unfolded, free, given = Unfolded.of(energy.network(layers), nodes, clamps)
    free, given = jax.tree.map(lambda z: z[0], (free, given))
    return unfolded, unfolded.coordinates(free, given), given, weights


def dense(unfolded, v, given):
    """$P$, $J$, and the curvature and the gradient of the loss, of one vector."""
    x, unravel = jax.flatten_util.ravel_pytree(v)
    names = [name for name in v for _ in range(v[name].size)]
    P = np.array([float(unfolded.network[name].precision) for name in names])
    predict = lambda x: jax.flatten_util.ravel_pytree(unfolded.predict(unravel(x), given)[0])[0]
    (seen,) = unfolded.seen
    loss = lambda y: unfolded.loss({seen: y}, given)
    yhat = predict(x)
    parts = jax.jacobian(predict)(x), jax.hessian(loss)(yhat), jax.grad(loss)(yhat)
    return x, P, *map(np.asarray, parts), loss, yhat


LOSSES = pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])


@LOSSES
def test_a_descent_moves_by_gauss_and_newton(loss):
    unfolded, v, given, _ = chain(loss)
    x, P, J, H, slope, _, _ = dense(unfolded, v, given)
    problem = _Problem.of(unfolded, *jax.flatten_util.ravel_pytree(v), given, True)
    point = problem.at(x)
    gradient, matrix = P * x + J.T @ slope, np.diag(P) + J.T @ H @ J
    move = np.linalg.solve(matrix, gradient)
    assert_close(point.gradient, gradient)
    assert_close(point.energy, unfolded.energy(v, given))
    assert_close(point.move, move)
    assert_close(point.lam, -slope + H @ J @ move)  # The error after that step.
    for q in draw(9, 2, len(x)):
        assert_close(
            problem.precondition(jnp.asarray(q), point.inverses), np.linalg.solve(matrix, q)
        )


def test_without_a_matrix_it_moves_by_the_precisions():
    unfolded, v, given, _ = chain()
    x, P, J, _, slope, _, _ = dense(unfolded, v, given)
    point = _Problem.of(unfolded, *jax.flatten_util.ravel_pytree(v), given, False).at(x)
    assert_close(point.move, (P * x + J.T @ slope) / P)
    assert_close(point.lam, -slope)


@pytest.mark.parametrize("has_matrix", [True, False])
def test_rounding_of_the_output_is_noise_of_the_errors(has_matrix):
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    _, P, J, H, _, loss, yhat = dense(unfolded, v, given)
    rounding = np.asarray(relax_module.rounding_of(loss, yhat))
    if has_matrix:
        rounding = np.linalg.solve(np.eye(4) + H @ J @ np.diag(1 / P) @ J.T, rounding)
    noise = J.T @ rounding / P
    found = _Problem.of(unfolded, *jax.flatten_util.ravel_pytree(v), given, has_matrix).noise
    assert_close(found, np.sqrt(noise @ np.diag(P) @ noise))


def gap_of(x, *steps, P=(4.0, 1.0), noise=0.0):
    P = numbers(*P)
    W = 1 / jnp.where(P > 0, P, 1)
    problem = _Problem(None, {}, None, P, W, jnp.zeros((0, 2)), P[:0], P[:0], jnp.asarray(noise))
    rest = [jnp.asarray(0.0)] * 5
    return problem.gap(_Point(numbers(*x), rest[0], *rest), *(numbers(*s) for s in steps))


def test_a_gap_is_a_part_of_the_errors():
    """In the norm of the precisions: $(3, 8)$ has $4 \\cdot 9 + 64 = 100$."""
    assert_close(gap_of((3, 8), (0.3, 0.8)), 0.1)
    assert_close(gap_of((3, 8), (0.5, 0)), 0.1)
    assert_close(gap_of((3, 8), (0, 0.5), (0.0, 1.0)), 0.1)
    assert_close(gap_of((3, 8), (0, 1.0), (0.0, 0.5)), 0.1)
    assert_close(gap_of((3, 8), (0, 1.0), noise=0.5), 0.05)
    assert gap_of((3, 8), (0, 1.0), noise=2.0) == 0


@pytest.mark.parametrize(("flat", "gap"), [(0.5, 0.2), (4.0, 0.1)])
def test_a_flat_state_counts_as_one_at_most(flat, gap):
    assert_close(gap_of((0, flat), (0, 0.1), P=(4.0, 0.0)), gap)
    both = gap_of((1, 4), (0, 0.1), P=(4.0, 0.0))
    assert_close(both, 0.1 / np.sqrt(4 + 1))


def test_a_flat_state_has_a_weight_of_one():
    unfolded, v, given, _ = chain(flat=True)
    problem = _Problem.of(unfolded, *jax.flatten_util.ravel_pytree(v), given, True)
    assert_close(problem.P, [0.0, 0.0, 2.0, 2.0, 2.0])
    assert_close(problem.W, [1.0, 1.0, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("flat", [False, True])
def test_coordinates_unfold_to_the_states(flat):
    unfolded, v, given, weights = chain(flat=flat)
    z, predicted = unfolded.unfold(v, given)
    assert_close(z[1] - v[1], weights[0] @ z[0])
    assert_close(predicted[2], weights[1] @ z[1])
    back = unfolded.coordinates({name: z[name] for name in v}, given)
    assert all(np.allclose(back[name], v[name]) for name in v)


def test_shares_of_what_can_be_relaxed():
    share = lambda *energies: relaxed_share(*numbers(*energies))
    assert_close(share(9.0, 5.0, 1.0), 0.5)
    assert_close(share(9.0, 9.0, 9.0), 0.0)


# --- a step of a descent ---


@pytest.mark.parametrize("length", [1.0, 0.3])
@pytest.mark.parametrize(("bend", "at"), [(1.5, 1 / 3), (1.25, 0.4), (0.6, 0.5), (9.0, 0.1)])
def test_a_shorter_step_is_the_minimum_of_a_parabola(length, bend, at):
    """$-2t + b t^2 / l$ has it at $t = l / b$: of the length, between a tenth and a half."""
    slope, bend = -2.0, 2 * bend / 3 * 1.5
    rise = slope * length + bend * length
    at = min(max(1 / bend, 0.1), 0.5)
    assert_close(_shorten(numbers(length)[0], numbers(slope)[0], numbers(rise)[0]), at * length)


@pytest.mark.parametrize("rise", [NAN, INF])
def test_a_step_that_leads_nowhere_is_a_tenth_as_long(rise):
    assert_close(_shorten(jnp.asarray(0.5), jnp.asarray(-1.0), jnp.asarray(rise)), 0.05)


class Bowl(_Problem):
    """$P x^2 / 2$, with the step to its minimum, and with `noise` for a blur."""

    @staticmethod
    def of(curvature=1.0, blur=0.0):
        P, blur = jnp.asarray(curvature), jnp.asarray(blur)
        return Bowl(None, {}, None, P, 1 / P, P, P, P, blur)

    def at(self, x):
        gradient, none = self.P * x, jnp.zeros((0, 0))
        return _Point(x, 0.5 * jnp.vdot(x, gradient), gradient, x, none, x, self.noise)

    def precondition(self, q, inverses):
        return q / self.P

    def gap(self, point, *steps):
        return jnp.max(jnp.stack([jnp.linalg.norm(s) for s in steps]))


def step(bowl, x, towards, length=1.0):
    empty = jnp.zeros((relax_module._MEMORY, 1))
    progress = relax_module.Progress(*numbers(INF, INF), jnp.asarray(0))
    memory, zero = _Memory(empty, empty, empty[:, 0]), jnp.asarray(0.0)
    point, towards = bowl.at(numbers(x)), numbers(towards)
    state = (point, memory, towards, jnp.asarray(length), zero, jnp.asarray(7), progress)
    return _step(bowl, state)


def test_a_step_that_descends_is_taken():
    point, memory, towards, length, gap, steps, progress = step(Bowl.of(2.0), 1.0, -0.5)
    assert_close(point.x, [0.5])
    assert_close(memory.s[0], [-0.5])
    assert_close(memory.y[0], [-1.0])
    assert_close(towards, [-0.5])  # To the minimum.
    assert_close(gap, 0.5)
    assert length == 1 and steps == 8 and progress.stalled == 0 and progress.gap == gap


def test_a_step_that_does_not_is_shorter():
    """From 1 to -2: of a step of 3 the minimum is at a third."""
    point, memory, towards, length, _, steps, _ = step(Bowl.of(2.0), 1.0, -3.0)
    assert_close(point.x, [1.0])
    assert_close(towards, [-3.0])
    assert_close(length, 1 / 3)
    assert steps == 8 and not memory.rho.any()


@pytest.mark.parametrize(
    ("towards", "length", "blur", "taken"),
    [
        (-2.0, 1.0, 0.0, False),  # To the other side: as high as before.
        (-2.0, 1.0, 0.01, True),  # Who can tell?
        (-1.999, 1.0, 0.0, True),
        (-1.0, 1e-3, 0.0, True),
        (-1e-3, 1.0, 0.0, True),
    ],
)
def test_a_step_has_to_descend_by_a_small_part_of_its_slope(towards, length, blur, taken):
    point = step(Bowl.of(blur=blur), 1.0, towards, length)[0]
    assert bool(point.x[0] != 1) == taken


def test_a_direction_is_the_memorys_if_it_leads_down():
    bowl, x = Bowl.of(), numbers(1.0, 2.0)
    memory = pushed([(numbers(1, 0), numbers(4, 0))], size=2)
    assert_close(_aim(bowl, bowl.at(x), memory), [-0.25, -2.0])
    hill = Bowl.of(-1.0)  # There the memory's leads up.
    for z in (x, 0.01 * x):
        assert_close(_aim(hill, hill.at(z)._replace(move=7 * z), memory), -7 * z)
    never = memory._replace(rho=memory.rho.at[0].set(INF))
    assert_close(_aim(bowl, bowl.at(x), never), -x)
    half = memory._replace(s=memory.s.at[0, 1].set(-INF))
    assert_close(_aim(bowl, bowl.at(x), half), -x)


# --- descents ---

descend = eqx.filter_jit(relax)


def solution(unfolded, v, given):
    """Of a square."""
    x, P, J, _, slope, _, _ = dense(unfolded, v, given)
    return np.asarray(x) - np.linalg.solve(
        np.diag(P) + J.T @ J * _output(unfolded), P * x + J.T @ slope
    )


def _output(unfolded):
    return float(unfolded.network[unfolded.seen[0]].precision)


@pytest.mark.parametrize("has_matrix", [True, False])
def test_a_descent_ends_at_the_minimum(has_matrix):
    unfolded, v, given, _ = chain()
    named = dict(rtol=1e-9, max_steps=100, dense=has_matrix)
    found = descend(unfolded, v, given, NOTHING, **named)
    x = np.concatenate([np.ravel(found.v[name]) for name in v])
    assert_close(x, solution(unfolded, v, given), rtol=1e-6)
    assert_close(found.energy, unfolded.energy(found.v, given), rtol=1e-6)
    slope = jax.grad(unfolded.loss)(unfolded.predict(found.v, given)[0], given)
    assert_close(found.lam[2], -slope[2], rtol=1e-6)
    assert found.gap <= 1e-9 and 1 <= found.steps < (3 if has_matrix else 100)


def test_a_descent_that_is_done_does_nothing():
    unfolded, v, given, _ = chain()
    named = dict(rtol=1e-9, max_steps=100, dense=False)
    found = descend(unfolded, v, given, jnp.asarray(True), **named)
    assert found.steps == 0
    assert_close(found.v[1], v[1])


def test_a_descent_takes_as_many_steps_as_it_may():
    """And says how far off it is."""
    unfolded, v, given, _ = chain(jpc.cross_entropy, (0.1, 9.0))
    for most in (1, 4):
        found = descend(unfolded, v, given, NOTHING, rtol=1e-9, max_steps=most, dense=False)
        assert found.steps == most and found.gap > 1e-9
        assert found.energy <= unfolded.energy(v, given)
    assert found.energy < unfolded.energy(v, given)


def test_an_example_by_itself_begins_anew_and_counts_what_was():
    """Its steps are added to those before; if it is done, it is left as it is."""
    unfolded, v, given, _ = chain(jpc.cross_entropy, (0.1, 9.0))
    before = learn_from(unfolded, v, given, None)._replace(steps=jnp.asarray(5))
    own = descend(unfolded, v, given, NOTHING, rtol=1e-9, max_steps=4, dense=False)
    alone = eqx.filter_jit(jpc.Equilibrium(rtol=1e-9, max_steps=4)._alone)
    after = alone(unfolded, False, "none", v, given, before, NOTHING)
    assert after.steps == 5 + own.steps and own.steps == 4
    assert_close(after.v[1], own.v[1])
    assert_close(after.gap, own.gap)
    same = alone(unfolded, False, "none", v, given, before, jnp.asarray(True))
    assert same.steps == 5
    assert_close(same.v[1], v[1])


@pytest.mark.parametrize("has_matrix", [True, False])
def test_a_descent_ends_when_nothing_comes_of_it(has_matrix):
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    named = dict(rtol=0.0, max_steps=1000, dense=has_matrix)
    found = descend(unfolded, v, given, NOTHING, **named)
    assert found.steps < 300
    gradient = jax.grad(unfolded.energy)(found.v, given)
    assert np.max(np.abs(gradient[1])) < 1e-6


# --- rounding ---


@pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])
def test_energies_differ_by_their_blur_in_single_precision(loss):
    """At most, and by more than a hundredth of it."""
    square, target = loss is jpc.squared_error, np.eye(5)[2]
    parts = []
    for seed in range(40):
        exact = 30 * draw(seed, 5) * 10.0 ** (seed % 3 - 1)
        here = jnp.asarray(exact, jnp.float32)
        value = ft.partial(loss, jnp.asarray(target, jnp.float32))
        energy = value(here)
        blur = blur_of(energy, value, here, square)
        true = loss(jnp.asarray(target), jnp.asarray(exact))
        parts.append(float(jnp.abs(energy - true) / blur))
    assert 0.01 < max(parts) < 1, parts


def test_blur_is_of_the_energy_and_of_the_predictions():
    """Its size in units of the last place, each part alone."""
    eps = float(jnp.finfo(float).eps)
    flat, steep = lambda y: 0.0 * jnp.sum(y), lambda y: 1e6 * jnp.sum(y)
    y, none = numbers(3.0, 4.0), jnp.asarray(0.0)
    part = lambda *given: float(blur_of(*given)) / eps
    assert 1 <= part(jnp.asarray(-7.0), flat, y, True) / 7 <= 10
    assert part(none, flat, y, True) == 0
    assert 1 <= part(none, flat, y, False) / 5 <= 10
    assert 1 <= part(none, steep, y, True) / (5 * np.sqrt(2) * 1e6) <= 10


def test_products_of_an_accelerator_have_ten_bits(monkeypatch):
    """Those of float32 only. The next number after one is off by $2^{-10}$."""
    for rounds in (False, True):
        monkeypatch.setattr(relax_module, "rounds_products", lambda rounds=rounds: rounds)
        single, double = map(relax_module.product_eps, (jnp.float32, jnp.float64))
        assert double == jnp.finfo(jnp.float64).eps
        assert single == (1 / 1024 if rounds else jnp.finfo(jnp.float32).eps)


def test_the_energy_of_one_example():
    unfolded, v, given, _ = chain(jpc.cross_entropy)
    energy, blur = energy_of(unfolded, v, given)
    assert_close(energy, unfolded.energy(v, given))
    assert 0 < blur < 1e-13 * energy


def test_what_is_picked():
    one, two = jnp.ones((3, 2)), jnp.zeros((3, 2))
    found = pick(
        jnp.array([True, False, True]), {"a": one, "b": one[:, 0]}, {"a": two, "b": two[:, 0]}
    )
    assert_close(found["a"], [[1, 1], [0, 0], [1, 1]])
    assert_close(found["b"], [1, 0, 1])
    assert at_least(jnp.asarray(2.0)) == 2 and at_least(jnp.asarray(0.0)) > 0


# --- iterations of a chain of single units: everything in closed form ---

W1, W2, P1, X, Y = 0.7, 1.5, 2.0, 0.8, 3.0
A = W2**2 / P1
G = Y - W2 * W1 * X  # The error of a feedforward pass.
EXACT = G / (1 + A)


def unit_chords(ratio, rtol=1e-3, strict=True, kinks="none", safe=None):
    """With a matrix for which each step is `1 - ratio` times what is missing."""
    linear = eqx.nn.Linear(1, 1, use_bias=False, key=jr.key(0))
    layers = [eqx.tree_at(lambda m: m.weight, linear, jnp.full((1, 1), w)) for w in (W1, W2)]
    nodes, clamps = jpc.clamp([jnp.zeros((1, 1))], jnp.full((1, 1), Y), jnp.full((1, 1), X))
    energy = jpc.PCEnergy(precision=[P1, 1.0])
    unfolded, _, given = Unfolded.of(energy.network(layers), nodes, clamps)
    given = jax.tree.map(lambda z: z[0], given)
    unfolded = unfolded.knowing(unfolded.foresee(given))
    shared = Inverse(jnp.full((1, 1), (1 - ratio) / (1 + A)))
    safe = not strict if safe is None else safe
    return Chords(unfolded, given, shared, rtol, strict, kinks, safe)


def iterate(ratio, count, **options):
    some = unit_chords(ratio, **options)
    way = begin(some, {1: jnp.zeros(1)})
    for _ in range(count - 1):
        way = go_on(some, way)
    found = finish(some, way)
    assert_close(found.delta[1], W2 * found.lam[2])
    errors = way.best.delta if way.best.higher else found.delta[1]
    assert_close(found.v[1], errors / P1)
    assert not found.kinks
    return float(found.lam[2][0]) / EXACT, float(found.gap), int(found.steps)


@pytest.mark.parametrize("ratio", [0.1, -0.2, 0.0])
def test_the_first_iteration_is_the_step_of_the_matrix(ratio):
    part, gap, steps = iterate(ratio, 1)
    assert_close(part, 1 - ratio)
    assert np.isinf(gap) and steps == 1


@pytest.mark.parametrize("ratio", [0.1, -0.2, 0.6, -0.5])
def test_two_steps_of_a_single_unit_are_enough_to_know_its_matrix(ratio):
    part, gap, _ = iterate(ratio, 2)
    assert_close(part, 1.0)
    left = np.clip(abs(ratio) / (1 - ratio), 0.25, 9)
    assert_close(gap, abs(ratio * (1 - ratio)) * left)
    part, gap, steps = iterate(ratio, 3)
    assert_close(part, 1.0)
    assert gap < 1e-12 and steps == 3


def test_an_example_that_is_over_rests():
    assert iterate(0.1, 9)[2] == 3  # A third step that changes nothing is the last.


@pytest.mark.parametrize(("strict", "part"), [(True, 1e-3), (False, 0.1)])
def test_how_far_an_example_goes_on_while_it_waits(strict, part):
    some = unit_chords(0.5, rtol=0.01, strict=strict)
    way = begin(some, {1: jnp.zeros(1)})
    at = lambda gap: way._replace(now=way.now._replace(gap=jnp.asarray(gap)))
    taken = jax.jit(lambda gap: go_on(some, at(gap)).taken)
    assert [int(taken(0.01 * part * by)) for by in (1.1, 0.9)] == [2, 1]


def test_a_step_to_a_higher_energy_is_taken_back():
    """The energy rises if a step is more than twice as long as it should be. Its quarter is
    tried, and so on: 31 times, 7.75 times, 1.9375 times.
    """
    first = 31.0
    for taken in (1, 2, 3):
        assert_close(iterate(1 - first, taken)[0], first)
    assert iterate(1 - first, 3)[1:] == (1.0, 3)  # Off by as much as there is.
    assert_close(iterate(1 - first, 4)[0], 1.0)  # From the quarter of a quarter.
    assert iterate(1 - first, 5)[1] < 1e-9
    assert_close(iterate(-0.9, 2)[0], 1.0)  # Not quite twice.


def test_what_was_found_stays_as_close_if_the_iteration_that_is_taken_back_says_so():
    """Where a network is very sensitive, errors that are right to a tolerance may have a higher
    energy than others that are. The larger one of two estimates counts.
    """
    some = unit_chords(0.1, rtol=1e-9)
    found = go_on(some, begin(some, {1: jnp.zeros(1)}))
    below = found._replace(best=found.best._replace(energy=jnp.asarray(-1.0)))
    kept = go_on(some, below)
    assert_close(kept.best.found.delta, found.best.found.delta)
    assert_close(kept.now.gap, found.now.gap)  # From there the step is none.
    assert_close(found.now.gap, 0.1 * 0.9 * 0.25)
    apart = lambda way, by: way._replace(now=way.now._replace(at=way.now.at.plus(way.now.at, by)))
    assert_close(go_on(some, apart(below, 0.2)).now.gap, 0.2 * 0.9 * 0.25, rtol=0.1)
    assert go_on(some, apart(below, 10.0)).now.gap == 1.0


def test_activities_do_not_end_where_the_energy_is_known_to_be_higher():
    """Errors that were found there are learned from. The states are those that they were found
    from, whose energy was the lowest.
    """
    some = unit_chords(0.1, rtol=1e-9)
    found = go_on(some, begin(some, {1: jnp.zeros(1)}))
    assert not found.best.higher
    assert_close(finish(some, found).v[1], found.best.found.delta / P1)
    back = go_on(some, found._replace(best=found.best._replace(energy=jnp.asarray(-1.0))))
    assert back.best.higher
    ended = finish(some, back)
    assert_close(ended.v[1], back.best.delta / P1)
    assert_close(ended.delta[1], found.best.found.delta)
    assert abs(float(back.best.delta[0] - found.best.found.delta[0])) > 0.01
    again = go_on(some, back._replace(best=back.best._replace(energy=jnp.asarray(1e9))))
    assert not again.best.higher


def test_what_has_not_come_together_learns_from_its_first_step_in_training():
    (strict, *_), (training, gap, _) = iterate(0.5, 2), iterate(0.5, 2, strict=False)
    assert gap > 0.05
    assert_close(strict, 1.0)
    assert_close(training, 0.5)
    assert_close(iterate(0.5, 3, strict=False)[0], 1.0)


def test_what_has_not_come_together_learns_from_its_last_step_if_asked_to():
    part, gap, _ = iterate(0.5, 2, strict=False, safe=False)
    assert_close(part, 1.0)
    assert_close(gap, 0.25)


def test_beside_kinks_only_what_has_converged_learns_from_its_last_step():
    options = dict(strict=False, kinks="others")
    assert_close(iterate(0.1, 2, rtol=0.06, **options)[0], 1.0)
    part, gap, _ = iterate(0.1, 2, rtol=0.03, **options)
    assert_close(part, 0.9)
    assert_close(gap, 0.1 * 0.9 * 0.5 + 0.1)  # And what the two steps differ by.


def test_what_is_left_of_a_series_of_steps():
    """After a step of a geometric series, as a part of it: $r / (1 - r)$. If its signs alternate,
    that is less than the step, and at least a tenth counts; beside kinks a half.
    """
    for ratio, left in ((0.2, 0.25), (0.6, 1.5), (-0.5, 1 / 3), (0.01, 0.1)):
        _, gap, _ = iterate(ratio, 2, strict=False, rtol=1.0, safe=False)
        assert_close(gap, abs(ratio * (1 - ratio)) * left)
    _, gap, _ = iterate(-0.5, 2, strict=False, rtol=1.0, safe=False, kinks="others")
    assert_close(gap, 0.5 * 1.5 * 0.5)


@pytest.mark.parametrize("beta", [0.25, -0.5, 1.0])
def test_a_target_is_moved_by_a_part_of_the_error(beta):
    """Where there is one: what is not given is not moved, and does not count even as NaN."""
    predicted, target = numbers(1.0, -2.0, 4.0), numbers(3.0, 2.0, 5.0)
    moved = [1.0 + 2 * beta, -2.0 + 4 * beta, 4.0 + beta]
    assert_close(_towards(predicted, target, jnp.asarray(beta)), moved)
    mask = jnp.array([True, False, True])
    some = _towards(predicted, jpc.Masked(target.at[1].set(NAN), mask), jnp.asarray(beta))
    assert_close(some.value, [moved[0], 0.0, moved[2]])
    assert jnp.all(some.mask == mask)


@pytest.mark.parametrize(
    ("solver", "controller", "rtol", "cost"),
    [
        (dfx.Euler(), dfx.ConstantStepSize(), None, 1),
        (dfx.Heun(), None, None, 2),
        (dfx.Tsit5(), None, None, 6),  # The last of its seven stages is the first of the next.
        (dfx.ImplicitEuler(), dfx.ConstantStepSize(), None, 1),
        (dfx.ImplicitEuler(), dfx.ConstantStepSize(), 0.1, 2),  # It looks for a steady state.
        (dfx.ImplicitEuler(), None, None, 2),
    ],
)
def test_a_step_of_a_flow_takes_as_many_gradients_as_its_solver(solver, controller, rtol, cost):
    dt = None if controller is None else 0.1
    flow = jpc.GradientFlow(solver, 1.0, dt, controller, rtol)
    assert flow._cost() == cost
    assert flow._looks() == (controller is None or rtol is not None)


PID = dfx.PIDController(rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("controller", "rtol", "expected"),
    [
        (None, None, 1e-3 * 5.0),
        (None, 0.2, 0.2 * 5.0),
        (PID, None, 2 * (1e-3 + 1e-2 * 2.5)),  # What it can reach, if that is less than a tenth.
        (dfx.PIDController(rtol=0.1, atol=1.0), None, 0.1 * 5.0),
        (PID, 0.2, 0.2 * 5.0),
        (dfx.ConstantStepSize(), None, 0.0),
        (dfx.ConstantStepSize(), 0.2, 0.2 * 5.0),
    ],
)
def test_a_flow_is_steady_below_a_part_of_its_first_gradient(controller, rtol, expected):
    """Of $z^2$ (so that the gradient is $2 z$) at $z = 2.5$, up to rounding; a controller of ours
    asks for half of that, over the curvature of 2.
    """
    dt = 0.1 if isinstance(controller, dfx.ConstantStepSize) else None
    flow = jpc.GradientFlow(dfx.Heun(), 1.0, dt, controller, rtol)
    field, state = (lambda t, z, args: -2 * z), jnp.full(4, 2.5)
    used, steady, curvature = flow._tolerances(field, state, field(None, state, None))
    assert_close(steady, expected, rtol=1e-9, atol=1e-13)
    assert steady > 0  # Rounding is steady, too.
    if controller is None:
        assert_close(curvature, 2.0)
        assert used.rtol == 0
        assert_close(used.atol, 0.5 * expected / 2, rtol=1e-9)
    else:
        assert used is controller and curvature is None


def test_a_small_curvature_counts_as_one():
    field, state = (lambda t, z, args: -0.1 * z), jnp.full(4, 2.5)
    *_, curvature = jpc.GradientFlow()._tolerances(field, state, field(None, state, None))
    assert_close(curvature, 1.0)


def found_with(gaps, sizes):
    """What was found for a batch whose errors are of these sizes, in two parts of 3 : 4."""
    none, sizes = {1: jnp.zeros((len(gaps), 1))}, jnp.asarray(sizes)[:, None]
    lam, delta = {2: 0.6 * sizes}, {1: 0.8 * sizes}
    return Found(none, none, delta, lam, numbers(*gaps), jnp.ones(len(gaps), int), NOTHING)


def test_with_chords_alone_what_counts_is_what_an_example_adds_to_the_batch():
    """Errors of 1, 1 and 4 are 2 in the mean: the small ones may be off by twice as much."""
    rule, sizes = jpc.Equilibrium(rtol=0.1, max_steps=0), (1.0, 1.0, 4.0)
    for gaps, expected in (
        ((0.19, 0.21, 0.09), (True, False, True)),
        ((0.21, 0.19, 0.11), (False, True, False)),
    ):
        assert (*rule._converged(found_with(gaps, sizes)).tolist(),) == expected
    for steps in (None, 1):  # With steps of its own each has to be within the tolerance.
        alone = jpc.Equilibrium(rtol=0.1, max_steps=steps)
        found = alone._converged(found_with((0.09, 0.11, 0.11), sizes))
        assert found.tolist() == [True, False, False]


@pytest.mark.parametrize("shared", [4, None])
def test_a_matrix_is_carried_on_if_it_is_shared(shared):
    rule = jpc.Equilibrium(shared=shared, max_steps=None if shared is None else 7)
    assert rule._carry(None) is None
    carried = rule._carry("A")
    assert (carried is None) == (shared is None)
    if shared is not None:
        assert carried == dataclasses.replace(rule, matrix="A")
        assert jpc.Equilibrium()._carry("A").max_steps == 0


def test_a_part_is_that_of_the_worst_or_of_the_whole():
    changes, sizes = numbers(0.3, 0.4), numbers(3.0, 1.0)
    assert_close(_part(changes, sizes, True), 0.4)
    assert_close(_part(changes, sizes, False), 0.5 / np.sqrt(10))
    for strict in (True, False):  # Nothing is a small part of infinity.
        assert _part(changes, numbers(INF, 1.0), strict) == INF


def test_what_is_foreseen_is_not_predicted_again():
    some = unit_chords(0.0)
    (prediction,) = some.unfolded.foresee(some.given) or [None]
    assert prediction is None  # It was, already.
    predicted, z = some.unfolded.predict({1: numbers(0.25)}, some.given)
    assert_close(z[1], [W1 * X + 0.25])
    assert_close(predicted[2], [W2 * (W1 * X + 0.25)])


class Output:
    """What chords ask of a network."""

    def __init__(self, target):
        self.target = jnp.asarray(target)

    def loss(self, y, given):
        return jpc.cross_entropy(self.target, y)

    def quadratic(self, given):
        return False


@pytest.mark.parametrize("size", [0.5, 20.0])
def test_a_proposal_solves_the_equation_of_the_output(size):
    """$\\lambda + c = g(\\hat y + A c)$, also where a full step of Newton's would be too long."""
    root = draw(3, 4, 4)
    matrix, target = size * root @ root.T, np.eye(4)[1]
    yhat, lam = jnp.asarray(5 * draw(4, 4)), jnp.asarray(0.3 * draw(5, 4))
    some = Chords(Output(target), {}, Matrix(jnp.asarray(matrix)), 1e-3, True, "none", False)
    change = some.propose(lambda y: y, yhat, lam, 60)
    moved = np.asarray(yhat + matrix @ change)
    softmax = np.exp(moved - moved.max()) / np.sum(np.exp(moved - moved.max()))
    assert_close(lam + change, target - softmax, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        ({}, True),
        (dict(chords=16), False),  # As many as were asked for.
        (dict(shared=None), False),  # The matrix is its own,
        (dict(dense=2), False),  # or a sketch.
    ],
)
def test_who_leaves_the_batch(options, leaves, monkeypatch):
    """By default, examples with a whole matrix that is of others. Three units are given."""
    begun = ways((1.0, 1.0))
    point = _Pair(jnp.zeros((2, 5)), jnp.zeros((2, 3)))
    begun, asked = begun._replace(now=begun.now._replace(at=point)), []

    def note(ways, *_, leaves, **__):
        asked.append(leaves)
        return ways

    monkeypatch.setattr(equilibrium_module, "until_all", note)
    jpc.Equilibrium(**options)._go_on(begun, falling(0.5, 0.5), 3)
    assert asked == [leaves]


def test_proposals_begin_where_nothing_changes():
    """A step of Newton's from there, if it is not too long: with a small matrix."""
    matrix, lam = np.diag([0.01, 0.02, 0.03]), numbers(0.5, -0.2, 0.1)
    yhat = numbers(0.1, 0.2, 0.3)
    some = Chords(Output(np.eye(3)[0]), {}, Matrix(jnp.asarray(matrix)), 1e-3, True, "none", False)
    loss = lambda y: jpc.cross_entropy(jnp.eye(3)[0], y)
    S = np.eye(3) + np.asarray(jax.hessian(loss)(yhat)) @ matrix
    one = np.linalg.solve(S, -np.asarray(jax.grad(loss)(yhat)) - np.asarray(lam))
    assert_close(some.propose(lambda y: y, yhat, lam, 1), one)


def test_rounding_of_predictions_is_a_little():
    some = Chords(Output(np.eye(3)[0]), {}, Matrix(jnp.zeros((3, 3))), 1e-2, True, "none", False)
    assert 1e-17 < some.rounding(lambda y: y, numbers(0.1, 0.2, 0.3)) < 1e-14


# --- sketches ---


def taken_at(*points, matrix, target):
    """Steps of a linear problem, whose points are as long in $\\lambda$ as in the errors. The last
    one comes first.
    """
    points = [np.asarray(x) for x in points]
    steps = [target - matrix @ x for x in points]
    before = [*steps[1:], 0 * steps[0]]
    pair = lambda x: _Pair(jnp.asarray(x), jnp.asarray(x))
    all_of = zip(points, steps, before, strict=True)
    return [_Step(pair(x + f), pair(f), jnp.asarray((f - g) @ (f - g))) for x, f, g in all_of]


MATRIX, TARGET = np.array([[0.6, 0.2], [0.1, 1.7]]), np.array([1.0, 2.0])


def test_three_steps_in_two_dimensions_lead_there():
    steps = taken_at([0.3, 0.1], [-1.0, 0.5], [0.2, 2.0], matrix=MATRIX, target=TARGET)
    found = _mix(tuple(steps), jnp.asarray(2))
    assert_close(found.lam, np.linalg.solve(MATRIX, TARGET), rtol=1e-6)
    assert_close(found.delta, found.lam)
    assert_close(steps[0].at.lam, [0.3, 0.1])


def test_one_step_back_leads_to_the_shortest():
    """Of all mixtures of two points."""
    now, last, _ = taken_at([0.3, 0.1], [-1.0, 0.5], [-1.0, 0.5], matrix=MATRIX, target=TARGET)
    found = _mix((now, last, last), jnp.asarray(1))
    f, g = np.asarray(now.step.delta), np.asarray(last.step.delta)
    by = np.sum((f - g) * f) / np.sum((f - g) ** 2)
    ends = [np.asarray(each.made.delta) for each in (now, last)]
    assert_close(found.delta, ends[0] - by * (ends[0] - ends[1]), rtol=1e-6)


@pytest.mark.parametrize("known", [1, 2])
def test_steps_that_do_not_change_are_mixed_without_dividing_by_nothing(known):
    same, other = taken_at([0.3, 0.1], [0.3, 0.1], matrix=MATRIX, target=TARGET)
    found = _mix((same, other, other), jnp.asarray(known))
    assert_close(found.delta, same.made.delta)


def test_a_sketch_is_solved_with_like_a_matrix():
    F, rest = jnp.asarray(draw(6, 5, 2)), jnp.asarray(0.3)
    sketch, y = Sketch(F, rest), jnp.asarray(draw(7, 5))
    whole = np.asarray(F @ F.T) + 0.3 * np.eye(5)
    loss = lambda y: jnp.sum(numbers(1, 2, 3, 4, 5) * y**2) / 2
    S = np.eye(5) + np.diag([1.0, 2, 3, 4, 5]) @ whole
    for error in jnp.asarray(draw(8, 2, 5)):
        assert_close(sketch(error), whole @ error)
        assert_close(sketch.solve(loss, y, error), np.linalg.solve(S, error))
        assert_close(sketch.invert(loss, y).solve(loss, y, error), np.linalg.solve(S, error))


# --- flows ---


@pytest.mark.parametrize(("curvature", "counts"), [(0.4, True), (0.6, False), (2.0, False)])
def test_how_much_of_a_descent_a_step_makes(curvature, counts):
    """On a square a step of Euler's makes $1 - c \\, dt / 2$ of it; where $c \\, dt$ is above a
    half, it need not.
    """
    speed = numbers(3.0, -4.0)
    ended = (1 - curvature) * speed
    squares = jnp.vdot(speed, speed), jnp.vdot(ended, ended)
    for dt in numbers(0.5, 1.0, 3.0):
        found = _descent(jnp.asarray(0.5), dt, dt * speed, speed, ended, squares)
        assert_close(found, 0.45 + 0.1 * (1 - curvature / 2) if counts else 0.5)
    assert futile(jnp.asarray(0.2)) and not futile(jnp.asarray(0.3))


def test_sizes_of_a_flow():
    assert_close(rms(numbers(3.0, 4.0, 0.0, 0.0)), 2.5)
    assert_close(_relative(numbers(1.0, 1.0), numbers(4.0, 4.0)), 0.25)
    assert_close(_relative(numbers(1.0, 1.0), numbers(0.0, 0.0)), 1.0)


def test_the_largest_curvature_of_a_square():
    largest = numbers(5.0, 0.3, -0.2)
    field = lambda t, z, args: -largest * z
    found = _curvature(field, numbers(1.0, 1.0, 1.0), numbers(1.0, 1.0, 1.0))
    assert_close(found, 5.0, rtol=1e-6)
    small = lambda t, z, args: 0.01 * field(t, z, args)
    assert_close(_curvature(small, jnp.ones(3), 0.1 * jnp.ones(3)), 0.05, rtol=1e-6)
    assert _curvature(field, jnp.zeros(3), jnp.zeros(3)) == 0


def test_a_record_keeps_its_last_value():
    ts, values = numbers(0.0, 1.0, INF, INF), {"z": numbers(5.0, 6.0, INF, INF)}
    ts, kept, length = _without_padding(ts, values, {"z": jnp.asarray(4.0)})
    assert_close(ts, [0, 1, 1, 1])
    assert_close(kept["z"], [5, 6, 6, 6])
    assert length == 2
    ts, kept, length = _without_padding(
        numbers(INF, INF), {"z": numbers(INF, INF)}, {"z": numbers(4.0)[0]}
    )
    assert_close(ts, [0, 0])
    assert_close(kept["z"], [4, 4])
    assert length == 1


# --- kinks ---


def lasso(a, b):
    """$(z - a)^2 / 2 + b |z|$, whose minimum is a soft threshold."""
    a, b = jnp.asarray(a), jnp.asarray(b)
    return lambda z: jnp.sum(0.5 * (z - a) ** 2 + b * jnp.abs(z))


PULLS, KINKS = numbers(3.0, 0.5, -2.0, -0.2, 0.0), numbers(1.0, 1.0, 0.5, 0.5, 1.0)
SOFT = np.sign(PULLS) * np.maximum(np.abs(PULLS) - np.asarray(KINKS), 0)


@pytest.mark.parametrize("start", [(1.0, 1.0, 1.0, 1.0, 1.0), (-4.0, 5.0, 2.0, -1.0, 0.3)])
def test_a_soft_threshold(start):
    energy = lasso(PULLS, KINKS)
    named = dict(tolerance=jnp.asarray(1e-9), blur=jnp.asarray(1e-12))
    found, gap, steps = settle(energy, numbers(*start), jnp.asarray(True), **named)
    assert_close(found, SOFT, atol=1e-9)
    assert gap <= 1e-9 and steps <= 12
    same, gap, steps = settle(energy, numbers(*start), NOTHING, **named)
    assert steps == 0 and gap == INF
    assert_close(same, numbers(*start))


def test_units_are_held_where_the_energy_rises_to_both_sides():
    """A pull within the kink is held; one beyond it is to go where it pulls."""
    units = jnp.array([True, True, True, True, False])
    held, left = _at_kinks(lasso(PULLS, KINKS), jnp.zeros(5), units)
    assert held.tolist() == [False, True, False, True, False]
    assert left.tolist()[:4] == [False, False, True, False]


def test_units_near_their_kinks_are_held_if_that_is_no_worse():
    energy, z = lasso(PULLS, KINKS), numbers(2.0, 1e-4, -1.5, 0.5, 1e-4)
    there, pins = _hold_near(energy, z, energy(z))
    assert pins.tolist() == [False, True, False, False, True]
    assert_close(there, [2.0, 0.0, -1.5, 0.5, 0.0])
    same, pins = _hold_near(energy, z, energy(z) - 1)
    assert not pins.any()
    assert_close(same, z)


def test_newtons_step_leaves_out_what_is_held():
    matrix = np.array([[2.0, 0.5, 0.3], [0.5, 1.0, 0.2], [0.3, 0.2, 3.0]])
    energy = lambda z: 0.5 * z @ jnp.asarray(matrix) @ z
    z, pins = numbers(1.0, 2.0, 3.0), jnp.array([False, True, False])
    gradient = jnp.where(pins, 0, jax.grad(energy)(z))
    some = np.array([0, 2])
    expected = -np.linalg.solve(matrix[np.ix_(some, some)], np.asarray(gradient)[some])
    assert_close(_newton(energy, z, pins, gradient)[some], expected, rtol=1e-6)
    assert_close(_newton(energy, z, pins, gradient)[1], 0.0, atol=1e-9)
    up = lambda z: -energy(z)  # Where it curves down, Newton's step would climb.
    gradient = jax.grad(up)(z)
    assert_close(_newton(up, z, jnp.zeros(3, bool), gradient), -gradient)


def test_newtons_step_is_as_precise_for_small_gradients():
    """The step does not depend on the unit of the energy."""
    curvatures, z = jnp.asarray(np.logspace(0, 2, 60)), jnp.ones(60)
    for size in (1e-10, 1.0):
        energy = lambda z, size=size: 0.5 * size * jnp.sum(curvatures * z**2)
        found = _newton(energy, z, jnp.zeros(60, bool), jax.grad(energy)(z))
        assert_close(found, -z, rtol=1e-8)


def test_units_are_held_whatever_others_are_beside_them():
    """$|a| + (a - b + 1)^2$ has a kink in $a$ at $b = 1$: the slopes there are -1 and 1."""
    energy = lambda z: jnp.abs(z[0]) + (z[0] - z[1] + 1) ** 2
    held, _ = _at_kinks(energy, numbers(0.0, 1.0), jnp.array([True, False]))
    assert held.tolist() == [True, False]


def test_a_unit_at_a_kink_stays_there():
    """It was not held, and a step leads away from it: there the energy rises."""
    new, held, okay = _search(jnp.sum, numbers(0.0), NOTHING[None], numbers(1.0), jnp.asarray(1e9))
    assert okay and new[0] == 1  # There is no kink.
    rises = lambda z: jnp.sum(jnp.abs(z))
    new, held, okay = _search(rises, numbers(0.0), NOTHING[None], numbers(1.0), jnp.asarray(0.0))
    assert okay and held[0] and new[0] == 0


def test_a_step_ends_at_a_kink_or_goes_on():
    energy, z = lasso(numbers(0.5, 3.0), numbers(1.0, 1.0)), numbers(1.0, 1.0)
    free = jnp.zeros(2, bool)
    new, held, okay = _search(energy, z, free, numbers(-1.5, 1.0), energy(z))
    assert_close(new, [0.0, 2.0])
    assert held.tolist() == [True, False] and okay
    # A unit that is held is let go to where it pulls; one that need not be stays.
    new, held, okay = _search(energy, jnp.zeros(2), ~free, numbers(0.0, 0.0), energy(jnp.zeros(2)))
    assert held.tolist() == [True, False] and okay and new[1] > 0
    # A step that is far too long is shortened.
    new, _, okay = _search(energy, z, free, numbers(0.0, 100.0), energy(z))
    assert okay and energy(new) <= energy(z) and new[1] > 1
    new, held, okay = _search(energy, z, free, numbers(0.0, -1.0), energy(z) - 100)
    assert not okay


def test_the_shortest_rest():
    rest, change = draw(10, 4), draw(11, 4)
    length = np.linalg.lstsq(change[:, None], rest, rcond=None)[0][0]
    assert_close(_shortest(jnp.asarray(rest), jnp.asarray(change)), length)
    assert _shortest(jnp.ones(2), jnp.zeros(2)) == 0


@pytest.mark.parametrize("chords", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [0.3, 1.7])
def test_chords_of_a_limit_leave_the_shortest_rest(chords, size):
    """Steps of a wrong matrix, as long as leaves the shortest rest, with dense matrices."""
    unfolded, v, given, _ = chain()
    v = jax.tree.map(jnp.zeros_like, v)
    _, P, J, H, slope, _, _ = dense(unfolded, v, given)
    A = J @ np.diag(1 / P) @ J.T
    wrong = size * A + 0.2 * np.eye(len(A))
    M, S, g = np.eye(len(A)) + H @ A, np.eye(len(A)) + H @ wrong, -slope
    lam = np.linalg.solve(S, g)
    lam = lam * (g @ M @ lam) / np.sum((M @ lam) ** 2) if chords > 1 else lam
    for _ in range(chords - 1):
        rest = g - M @ lam
        step = np.linalg.solve(S, rest)
        lam = lam + step * (rest @ M @ step) / np.sum((M @ step) ** 2)
    found = _solve(unfolded, chords, False, v, given, jnp.asarray(wrong), jnp.asarray(1.0))
    assert_close(found.delta[2], lam)
    last = np.linalg.solve(S, g - M @ lam)
    assert_close(found.gap, np.linalg.norm(last) / np.linalg.norm(lam))
    now, whole = (2 * g - M @ lam) @ A @ lam, g @ (A @ lam + wrong @ last)
    assert_close(found.relaxed, now / whole)


def test_eigenvalues_of_a_product():
    """Of diagonal matrices the products of their entries, also below one; what is negative by
    rounding counts as nothing.
    """
    H, A = np.diag([0.25, 4.0, -1e-17]), np.diag([2.0, 0.1, 3.0])
    assert_close(eigenvalues(jnp.asarray(H), jnp.asarray(A)), [0.0, 0.4, 0.5])


def moments(given, **masks):
    """Of a chain a, b, c, d with two layers between, by name."""
    linear = eqx.nn.Linear(2, 2, key=jr.key(0))
    energy = jpc.GraphEnergy({"b": ["a"], "c": ["b"], "d": ["c"]})
    params, x = dict.fromkeys("bcd", linear), jnp.ones((1, 2))
    nodes, clamps = jpc.pose(energy, params, {"a": x} | given, masks=masks)
    unfolded, _, given = Unfolded.of(energy.network(params), nodes, clamps)
    found = _moments(unfolded, jax.tree.map(lambda z: z[0], given))
    return {name: found[name] for name in params}


def test_errors_come_after_as_many_steps_as_there_are_layers():
    """What is given whole keeps those from behind it back. Of what is given in part some go on,
    so that errors come at two times.
    """
    x = jnp.ones((1, 2))
    assert moments({"d": x}) == {"b": 2, "c": 1, "d": 0}
    assert moments({"c": x, "d": x}) == {"b": 1, "c": 0, "d": 0}
    assert moments({"c": x}) == {"b": 1, "c": 0, "d": 0}  # Nothing leads back from the last.
    with pytest.raises(ValueError, match="from 'c' errors come after 0 and 1 steps"):
        moments({"c": x, "d": x}, c=jnp.array([[True, False]]))


def test_what_nothing_predicts_costs_nothing():
    """Unless it has a precision."""
    double, x, y = lambda z: 2 * z, numbers(3.0)[None], numbers(5.0)[None]
    for named, own in ((dict(), 0.0), (dict(precision={"x": 4.0}), 4 * 9 / 2)):
        energy = jpc.GraphEnergy({"y": ["x"]}, **named)
        assert_close(energy({"y": double}, {"x": x, "y": None}, {"x": None, "y": y}), own + 0.5)


def test_losses_are_sums_over_units():
    """Of three units, in NumPy; of errors above one and below."""
    t, p = np.array([0.3, 0.6, 0.1]), np.array([0.4, -1.2, 1.7])
    softmax, error = np.exp(p) / np.sum(np.exp(p)), np.abs(t - p)
    by_hand = {
        jpc.squared_error: 0.5 * error**2,
        jpc.cross_entropy: -t * np.log(softmax),
        jpc.bernoulli: np.log(1 + np.exp(p)) - t * p,
        jpc.poisson: np.exp(p) - t * p,
        jpc.huber: np.where(error < 1, 0.5 * error**2, error - 0.5),
    }
    for loss, expected in by_hand.items():
        assert_close(loss(jnp.asarray(t), jnp.asarray(p)), np.sum(expected))


def test_weights_of_both_directions():
    """Of single units: the halves of squared errors, times their weights."""
    double, treble = lambda z: 2 * z, lambda z: 3 * z
    energy, a, b = jpc.BPCEnergy(0.5, 0.25), numbers(3.0), numbers(5.0)
    down, up = energy.terms(([double], [treble]), [a, None], [None, b])
    assert_close(down[0], 0.5 * (5 - 6) ** 2 / 2)
    assert_close(up[0], 0.25 * (3 - 15) ** 2 / 2)


def test_a_flow_with_nothing_to_do_ends_at_once():
    """All states and gradients are zero, and so is what is small beside them."""
    model = jpc.make_mlp(jr.key(0), 2, 3, 2, 2, "linear")
    nodes, clamps = jpc.clamp([jnp.zeros((1, 3))], jnp.zeros((1, 2)), jnp.zeros((1, 2)))
    ended = jpc.GradientFlow()(jpc.PCEnergy(), model, nodes, clamps)
    assert ended.stats["t1"] == 0 and not ended.nodes[1].any()


@pytest.mark.parametrize(
    ("loss", "fit", "others"),
    [
        (jpc.squared_error, [(-9, 9)], []),
        (jpc.huber, [(-9, 9)], []),
        (jpc.bernoulli, [(0, 1), (0.3, 0.4)], [(0, 1.5), (-0.5, 1)]),
        (jpc.poisson, [(0, 7)], [(-1, 3)]),
        (jpc.cross_entropy, [(0.5, 0.5), (0, 1)], [(-0.5, 1.5), (1, 1), (0, 0)]),
    ],
)
def test_targets_are_what_their_loss_is_of(loss, fit, others):
    """Any numbers, numbers from 0 to 1, counts, or probabilities of classes."""
    wrong = lambda targets: any(map(bool, unfit("y", [loss], numbers(*targets)).values()))
    assert [wrong(targets) for targets in (*fit, *others)] == [False] * len(fit) + [True] * len(
        others
    )


def test_norms_are_means_of_a_batch_and_those_of_a_layer():
    states = [jnp.array([[3.0, 4.0], [0.0, 0.0]]), jnp.array([[1.0], [3.0]])]
    assert_close(jpc.compute_activity_norms(states), [2.5, 2.0])
    model, skips = [{"w": numbers(3.0), "b": numbers(4.0)}, numbers(2.0)], [None, numbers(1.0)]
    assert_close(jpc.compute_param_norms((model, None))[0], [5.0, 2.0])
    assert_close(jpc.compute_param_norms((model, skips))[1], [0.0, 1.0])


def test_a_part_of_nothing():
    """It is 0 if there is no difference, and infinite if there is one."""
    for size in (1.0, 1e-9):  # However small they are.
        assert_close(relative_gap([numbers(3.0 * size)], [numbers(4.0 * size)]), 0.75)
        assert relative_gap([numbers(3.0 * size)], [numbers(0.0)]) == INF
    assert relative_gap([numbers(0.0)], [numbers(0.0)]) == 0


def test_a_gap_is_to_what_there_is_to_learn(monkeypatch):
    """That may not be what the states say: here it is of states twice as large."""
    keys = jr.split(jr.key(0), 3)
    model = jpc.make_mlp(keys[0], 3, 5, 2, 2, "linear")
    x, y = jr.normal(keys[1], (7, 3)), jr.normal(keys[2], (7, 2))
    larger = lambda nodes: jax.tree.map(lambda z: 2 * z, nodes)

    def method(energy, params, nodes, clamps):
        lesson, ended = (energy, larger(nodes)), jpc.RESULTS.successful
        return jpc.finish(energy, params, nodes, nodes, clamps, ended, {}, lesson=lesson)

    monkeypatch.setattr(gap_module, "Equilibrium", lambda **_: method)
    activities = jpc.init_activities_with_ffwd(model, x)
    found = jpc.equilibrium_gap((model, None), activities, y, x)
    nodes, clamps = jpc.clamp(activities[:-1], y, x)
    learned = lambda nodes: eqx.filter_grad(jpc.PCEnergy())(model, nodes, clamps)
    here, there = (
        np.concatenate([w.ravel() for w in jax.tree.leaves(learned(z))])
        for z in (nodes, larger(nodes))
    )
    error = np.linalg.norm(here - there) / np.linalg.norm(there)
    assert_close(found["gradient_error"], error)
    assert error > 0.1


def test_where_nothing_is_compared_there_are_no_errors():
    """The equilibrium of a chain with a free output is its feedforward pass, from anywhere."""
    model, x = jpc.make_mlp(jr.key(0), 2, 3, 2, 2, "tanh"), jnp.asarray(draw(12, 4, 2))
    expected = jpc.feedforward_batch(model, x)
    start = [None, *(z + 1 for z in expected)]
    inferred = jpc.Equilibrium()(jpc.PCEnergy(), model, start, [x, None, None])
    for got, z in zip(inferred.nodes[1:], expected, strict=True):
        assert_close(got, z)
    assert not inferred.stats["error"].any()


def test_a_tolerance_is_half_of_the_digits():
    for dtype in (jnp.float32, jnp.float64):
        assert tolerance([None, jnp.zeros(2, dtype)]) == float(jnp.finfo(dtype).eps) ** 0.5


def test_accuracy_looks_at_the_last_axis():
    """Of two classes, of several in a sequence, and of one example."""
    truths = jnp.eye(2)[jnp.array([[0, 1, 1], [0, 0, 1]])]
    guesses = jnp.eye(2)[jnp.array([[0, 1, 0], [0, 0, 1]])]
    assert_close(jpc.compute_accuracy(truths, guesses), 100 * 5 / 6)
    assert_close(jpc.compute_accuracy(truths[0], guesses[0]), 100 * 2 / 3)
    assert_close(jpc.compute_accuracy(truths[:, :1], guesses[:, :1]), 100.0)
    for one in (jnp.ones((3, 1)), jnp.ones(3)):
        with pytest.raises(ValueError, match="at least two classes"):
            jpc.compute_accuracy(one, one)
    with pytest.raises(RuntimeError, match="preds is not finite"):
        jpc.compute_accuracy(truths, NAN * guesses)
    assert jnp.isnan(jax.jit(jpc.compute_accuracy)(truths, NAN * guesses))


@pytest.mark.parametrize("params", [[None, None], ([jnp.ones(2)],), "ab", (1, 2, 3)])
def test_norms_are_of_a_pair(params):
    with pytest.raises(TypeError, match=r"params must be \(model, None\)"):
        jpc.compute_param_norms(params)


@pytest.mark.parametrize("layers", ["ab", 3, jnp.ones(2)])
def test_norms_are_of_lists(layers):
    with pytest.raises(TypeError, match="activities must be a list"):
        jpc.compute_activity_norms(layers)
    with pytest.raises(TypeError, match="model must be a list"):
        jpc.compute_param_norms((layers, None))
    with pytest.raises(ValueError, match="model has no layers"):
        jpc.compute_param_norms(([], None))


@pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])
def test_rounding_is_that_of_a_product_and_of_a_target(loss):
    """Eight units in the last place of a prediction, by the curvature of the loss, and four of the
    slope at zero.
    """
    target, y = numbers(0.0, 1.0, 0.0), numbers(0.3, -2.0, 0.5)
    of = lambda y: loss(target, y)
    product = np.asarray(jax.hessian(of)(y)) @ np.asarray(y)
    slope = np.abs(np.asarray(jax.grad(of)(jnp.zeros(3))))
    eps = np.finfo(float).eps
    assert_close(relax_module.rounding_of(of, y) / eps, 8 * product + 4 * slope)


def test_what_is_at_its_minimum_may_still_be_rounded():
    target = numbers(1.0, 2.0)
    of = lambda y: jpc.squared_error(target, y)
    assert blur_of(jnp.asarray(0.0), of, target, True) > 0


def test_a_step_that_led_up_begins_where_the_one_before_it_did():
    """A quarter of the way from the last point that led down, whatever was before it."""
    some = unit_chords(0.5)
    way = go_on(some, begin(some, {1: jnp.zeros(1)}))
    pair = lambda delta, lam: _Pair(numbers(delta), numbers(lam))
    step, none = pair(0.5, 0.25), numbers(0.0)[0]
    made = [pair(1.5, 2.25), pair(7.0, 9.0)]
    last = tuple(_Step(each, step, none) for each in made)
    way = way._replace(now=way.now._replace(at=pair(5.0, -2.0)), last=last)
    back = _back(way, jnp.asarray(1.0))
    assert_close(back.at.delta, [2.0])
    assert_close(back.at.lam, [1.0])
    assert back.gap == 1 and back.ratio == 1
    closer = way._replace(now=way.now._replace(gap=jnp.asarray(0.2)))
    for gap, left in ((0.1, 0.2), (0.3, 0.3), (jnp.inf, 1), (jnp.nan, 1)):
        assert_close(_back(closer, jnp.asarray(gap)).gap, left)
    assert_close(back.sizes, way.now.sizes)


@pytest.mark.parametrize("strict", [True, False])
def test_rounding_is_taken_off_the_errors_of_what_is_given(strict):
    """And not off those of the states, which have none."""
    some = unit_chords(0.5, strict=strict)
    way = begin(some, {1: jnp.zeros(1)})
    gap = jax.jit(lambda rounding: go_on(some, way._replace(rounding=rounding)).now.gap)
    lam, errors = 0.25 * EXACT, 0.25 * EXACT * W2
    sizes = (lam, errors)
    none, half, more = map(float, map(gap, (0.0, 0.5 * lam, 2.0 * lam)))
    left = none / 0.25
    if strict:
        assert_close(half, none)
        assert_close(more, none)
    else:
        whole = np.hypot(*sizes) / 0.25
        assert_close(half, np.hypot(0.5 * lam, errors) / whole * left)
        assert_close(more, errors / whole * left)


def test_mixtures_of_three_steps_solve_for_two_outputs():
    """With any matrix: a space of two dimensions has been seen after three of them."""
    layers = [jax.tree_util.Partial(jnp.matmul, jnp.asarray(draw(s, 2, 2))) for s in (20, 21)]
    nodes, clamps = jpc.clamp([jnp.zeros((1, 2))], numbers(1.0, -2.0)[None], jnp.ones((1, 2)))
    unfolded, _, given = Unfolded.of(
        jpc.PCEnergy(precision=[2.0, 0.5]).network(layers), nodes, clamps
    )
    given = jax.tree.map(lambda z: z[0], given)
    v = {1: jnp.zeros(2)}
    _, P, J, H, slope, _, _ = dense(unfolded, v, given)
    shared = Inverse(jnp.asarray(0.4 * np.diag([1.0, 0.3])))
    some = Chords(unfolded, given, shared, 1e-12, True, True, False)
    way = begin(some, v)
    for _ in range(3):
        way = go_on(some, way)
    exact = np.linalg.solve(np.eye(2) + H @ J @ np.diag(1 / P) @ J.T, -slope)
    assert_close(finish(some, way).lam[2], exact, rtol=1e-5)
    assert way.taken == way.known == 4


def ways(gaps, sizes=1.0):
    """Some, of which nothing is looked at but how far off they are."""
    gaps = numbers(*gaps)
    one, none = jnp.ones_like(gaps), jnp.zeros_like(gaps)
    now = _Try(none, jnp.stack([sizes * one, none], axis=1), one, gaps)
    return Way(now, none, none, (none, none), none, none, jnp.ones(len(gaps), int))


def falling(*parts):
    """A step that leaves some parts of the gaps, of those that are not nearly zero."""

    def step(ways):
        gap = ways.now.gap * numbers(*parts)
        moved = jnp.where(ways.now.gap > 1e-9, ways.taken + 1, ways.taken)
        return ways._replace(now=ways.now._replace(gap=gap), taken=moved)

    return step


@pytest.mark.parametrize(
    ("parts", "rtol", "most", "least", "taken"),
    [
        ((0.1, 0.5), 0.3, 9, 1, 3),  # Until the slower one is there,
        ((0.1, 0.5), 0.3, 2, 1, 2),  # if it may,
        ((0.1, 0.5), 0.3, 9, 5, 5),  # and as often as it has to:
        ((1e-3, 1e-3), 0.3, 9, 5, 3),  # unless all are far within the tolerance.
        ((1e-3, 0.1), 0.3, 9, 5, 5),
        ((1e-9, 0.5), 1e-3, 5, 1, 5),  # One that rests does not keep another one going.
        ((0.5, 0.5), 2.0, 9, 1, 1),
    ],
)
def test_when_a_batch_of_examples_ends(parts, rtol, most, least, taken):
    end = until_all(ways((1.0, 1.0)), falling(*parts), rtol, most, least=least)
    assert jnp.max(end.taken) == taken


@pytest.mark.parametrize(
    ("parts", "rtol", "leaves", "taken"),
    [
        ((0.5, 0.6), 1e-5, True, (16, 8)),  # Off by 0.0078 and 0.028 after eight: one goes on.
        ((0.5, 0.6), 1e-5, False, (16, 16)),
        ((0.3, 0.6), 1e-5, True, (11, 8)),  # Nobody waits for it,
        ((0.3, 0.6), 0.2, True, (5, 5)),  # and it takes no more than it needs.
    ],
)
def test_examples_that_are_far_off_leave_the_batch(parts, rtol, leaves, taken):
    end = until_all(ways((1.0, 1.0)), falling(*parts), rtol, 16, leaves=leaves)
    assert_close(end.taken, taken)


@pytest.mark.parametrize(
    ("gaps", "sizes", "parts", "rtol", "most", "taken"),
    [
        ((1.0, 1.0), (1, 1), (0.5, 0.5), 0.2, 9, 4),
        ((1.0, 1.0), (1, 1), (0.5, 0.5), 0.2, 3, 3),
        ((1.0, 1.0), (1, 99), (1.0, 0.1), 0.02, 9, 3),  # Large errors count more than small ones,
        ((1.0, 1.0), (99, 1), (1.0, 0.1), 0.02, 9, 8),
        ((9.0, 1.0), (1, 1), (0.5, 0.5), 0.6, 9, 4),  # and none by more than itself.
        ((1.0, 1.0), (1, 1), (0.88, 0.88), 0.02, 40, 32),  # Two steps leave less than 0.8,
        ((1.0, 1.0), (1, 1), (0.91, 0.91), 0.02, 40, 8),  # or more than that.
    ],
)
def test_when_a_batch_ends_together(gaps, sizes, parts, rtol, most, taken):
    end = until_together(ways(gaps, numbers(*sizes)), falling(*parts), rtol, most)
    assert jnp.max(end.taken) == taken


@pytest.mark.parametrize(("kinks", "taken"), [("others", 4), ("held", 8), ("none", 8)])
def test_a_batch_ends_sooner_where_iterations_hop(kinks, taken):
    """Beside kinks that cannot be held it is soon known whether two of them leave nearly all."""
    named = dict(rtol=0.01, most=16, kinks=kinks)
    assert jnp.max(until_together(ways((0.5, 0.5)), falling(0.95, 0.95), **named).taken) == taken
    assert jnp.max(until_together(ways((0.5, 0.5)), falling(0.5, 0.5), **named).taken) == 7


class Free:
    """An output that costs nothing."""

    def loss(self, y, given):
        return 0.0 * jnp.sum(y)


def test_energies_of_iterations_are_the_same_but_for_a_thousandth():
    """And for rounding, where there is no energy; of large predictions it is larger."""
    some = unit_chords(0.0)
    yhat, unravel, *_ = some.predict({1: numbers(0.5)})
    energy, blur = _energy(some, numbers(1 / P1), numbers(0.5 * P1), unravel, yhat)
    prediction = W2 * (W1 * X + 0.5)
    exact = 0.5 * P1 * 0.25 + 0.5 * (Y - prediction) ** 2
    assert_close(energy, exact)
    assert_close(blur, 1e-3 * exact, rtol=1e-9)
    eps = np.finfo(float).eps
    for size in (1e-4, 1e4):
        none = Chords(Free(), {}, None, 1e-3, True, True, False)
        _, blur = _energy(none, numbers(0.0), numbers(0.0), lambda y: y, numbers(size, 0.0))
        assert 1 <= blur / (eps * size * (1 + size)) <= 100


def test_parts_of_a_batch_are_taken_at_a_time():
    """An eighth of it, rounded up, of those that are not over. An accelerator takes all."""
    calls = []

    def alone(x, found, over):
        jax.debug.callback(calls.append, x)
        return found._replace(gap=jnp.where(over, found.gap, -x))

    cases = (16, 13, False, 4), (9, 0, False, 10), (4, 4, False, 0), (9, 8, True, 9)
    for size, over, waits, expected in cases:
        calls.clear()
        x, done = jnp.arange(1.0, size + 1), jnp.arange(size) >= size - over
        before = found_with(jnp.ones(size), jnp.ones(size))._replace(kinks=done)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(equilibrium_module, "accelerated", lambda: waits)  # noqa: B023
            found = jax.jit(ft.partial(_few_at_a_time, alone))((x,), before, done)
        jax.effects_barrier()
        assert_close(found.gap, np.where(done, 1, -x))
        assert len(calls) == expected


def shared_problem(loss):
    layers = [jax.tree_util.Partial(jnp.matmul, jnp.asarray(draw(30, 3, 2))), Tanh(draw(31, 5, 3))]
    x, y = jnp.asarray(draw(32, 4, 2)), jnp.eye(5)[:4]
    energy = jpc.PCEnergy(loss, [2.0, 0.5])
    return energy, layers, *jpc.pose(energy, layers, {0: x, 2: y})


class Tanh(eqx.Module):
    weight: jax.Array

    def __call__(self, z):
        return jnp.asarray(self.weight) @ jnp.tanh(z)


def exact_matrices(energy, layers, nodes, clamps):
    """$A$ and $S$ of each example at the feedforward pass, in NumPy."""
    hidden = np.tanh(np.asarray(clamps[0]) @ draw(30, 3, 2).T)
    J = draw(31, 5, 3) * (1 - hidden**2)[:, None]
    A, y = J @ np.swapaxes(J, 1, 2) / 2.0, np.exp(hidden @ draw(31, 5, 3).T)
    y = y / np.sum(y, axis=1, keepdims=True)
    entropic = energy.loss is jpc.cross_entropy
    H = 0.5 * (y[..., None] * np.eye(5) - y[..., None] * y[:, None] if entropic else np.eye(5))
    return A, np.eye(5) + H @ A


@pytest.mark.parametrize("shared", [3, None])
@pytest.mark.parametrize("loss", [jpc.squared_error, jpc.cross_entropy])
def test_matrices_are_those_of_the_first_few(loss, shared):
    """Their mean, or each its own: inverted if the loss is a square."""
    problem = shared_problem(loss)
    A, S = exact_matrices(*problem)
    found = jpc.Equilibrium(shared=shared).prepare(*problem).matrix
    few = slice(None) if shared is None else slice(0, 1)
    mean = lambda z: z if shared is None else np.mean(z[:shared], axis=0, keepdims=True)
    expected = np.linalg.inv(mean(S)) if loss is jpc.squared_error else mean(A)
    got = found.matrix if shared is None else found.matrix[None]
    assert isinstance(found, Inverse if loss is jpc.squared_error else Matrix)
    assert_close(got, expected[few])


@pytest.mark.parametrize("shared", [2, None])
def test_sketches_are_of_the_first_example(shared):
    """With twice as many products as the largest matrix has rows."""
    energy, layers, nodes, clamps = shared_problem(jpc.cross_entropy)
    method = jpc.Equilibrium(shared=shared, dense=2)
    found = method.prepare(energy, layers, nodes, clamps).matrix
    A, _ = exact_matrices(energy, layers, nodes, clamps)
    assert found.F.shape == ((5, 4) if shared else (4, 5, 4))
    for i in range(1 if shared else 4):  # A has three columns, so that they find all of it.
        F = found.F if shared else found.F[i]
        assert_close(F @ F.T, A[i], rtol=1e-6, atol=1e-8)
